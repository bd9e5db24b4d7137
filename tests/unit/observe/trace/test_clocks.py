"""Clocks of two hosts: the accuracy of one comparison and of many."""

from __future__ import annotations

import random

import pytest

from undertow.engine.client.comparing import AT_ONCE, PER_TICK, ClockComparison
from undertow.engine.coordinator.messages import AskTime, Time
from undertow.observe.trace.clocks import UNSEEN_DRIFT, Clocks, Conversion
from undertow.tracing import events
from undertow.tracing.recorder import Recorder


def convert(clocks: Clocks, time_s: float) -> float:
    factor, shift_s = clocks.line
    return factor * time_s + shift_s


def test_without_a_comparison_a_time_stays_as_it_is() -> None:
    clocks = Clocks()
    assert not clocks.is_compared
    assert convert(clocks, 12.5) == 12.5


def test_the_fastest_round_trip_decides() -> None:
    clocks = Clocks()
    clocks.compare(1.0, 100.4, 0.9)
    clocks.compare(2.0, 100.0001, 0.0002)
    clocks.compare(3.0, 100.3, 0.7)
    assert clocks.is_compared
    assert convert(clocks, 5.0) == pytest.approx(105.0001)


def test_a_newer_comparison_counts_where_the_fastest_is_too_old() -> None:
    """The comparisons are too inaccurate to give a drift, and the first may be 0.6 ms off by now."""
    clocks = Clocks()
    clocks.compare(0.0, 100.0, 0.0001)
    clocks.compare(12.5, 100.0006, 0.0012)
    assert convert(clocks, 12.5) == pytest.approx(112.5006, abs=1e-9)


def test_a_drift_is_found_and_carried_on() -> None:
    clocks = Clocks()
    for second in range(60):
        clocks.compare(float(second), 100.0 + 0.00005 * second, 0.0001)
    assert convert(clocks, 100.0) == pytest.approx(200.0 + 0.00005 * 100, abs=1e-6)


def test_delayed_comparisons_do_not_change_the_drift() -> None:
    clocks = Clocks()
    for second in range(60):
        clocks.compare(float(second), 100.0 + 0.00005 * second, 0.0001)
        clocks.compare(second + 0.5, 100.01 * (second % 3), 0.02)
    assert convert(clocks, 100.0) == pytest.approx(200.0 + 0.00005 * 100, abs=1e-6)


def test_simultaneous_comparisons_give_no_drift() -> None:
    clocks = Clocks()
    for tenth in range(5):
        clocks.compare(tenth / 10, 100.0 + 0.00002 * tenth, 0.0001)
    assert convert(clocks, 1000.0) == pytest.approx(1100.0, abs=0.0001)


class Hosts:
    """Two clocks, and a link between them that is busy most of the time, with independent delays each way."""

    def __init__(self, seed: int, *, drift: float = 0.0, idle: float = 0.25) -> None:
        self.now_s = 0.0
        self.clocks = Clocks()
        self.fastest_s = float("inf")
        self._draw, self._drift, self._idle = random.Random(seed), drift, idle

    def compare(self, count: int, idle: float | None = None) -> None:
        for _ in range(count):
            asked_s = self.now_s
            there_s = asked_s + self._travel(self._idle if idle is None else idle)
            heard_s = there_s + self._travel(self._idle if idle is None else idle)
            offset_s = self.tell(there_s) - (asked_s + heard_s) / 2
            self.clocks.compare(heard_s, offset_s, heard_s - asked_s)
            self.fastest_s, self.now_s = min(self.fastest_s, heard_s - asked_s), heard_s

    def tell(self, time_s: float) -> float:
        """Return the time of the other clock."""
        return time_s + 1234.5 + self._drift * time_s

    @property
    def error_s(self) -> float:
        return abs(convert(self.clocks, self.now_s) - self.tell(self.now_s))

    def _travel(self, idle: float) -> float:
        is_busy = self._draw.random() > idle
        return 0.00004 + self._draw.expovariate(1 / 0.00003) + is_busy * self._draw.uniform(0.001, 0.03)


@pytest.mark.parametrize("seed", range(20))
def test_the_error_is_at_most_half_of_the_fastest_round_trip_plus_drift(seed: int) -> None:
    hosts = Hosts(seed)
    hosts.compare(40)
    assert hosts.error_s <= hosts.fastest_s / 2 + UNSEEN_DRIFT * hosts.now_s


@pytest.mark.parametrize("drift", [0.0, 0.00002, -0.00004])
@pytest.mark.parametrize("seed", range(10))
def test_clocks_that_drift_apart_stay_aligned_under_load(seed: int, drift: float) -> None:
    """A worker compares many times while the link is idle, then a few times per second."""
    hosts, errors_s = Hosts(seed, drift=drift, idle=0.5), []
    hosts.compare(16, idle=1.0)
    for _ in range(120):
        hosts.now_s += 1.0
        hosts.compare(4)
        errors_s.append(hosts.error_s)
    assert max(errors_s) < 0.0004
    assert sorted(errors_s)[len(errors_s) * 9 // 10] < 0.0002


class Pair:
    """A worker that compares its clock with rank 0's, which is ahead; messages are delayed."""

    def __init__(self, ahead_s: float, travel_s: float) -> None:
        self.now_s = 50.0
        self.questions: list[AskTime] = []
        self.recorder = Recorder(lambda: self.now_s)
        self.comparing = ClockComparison(self.recorder, self.questions.append)
        self._travel_s = travel_s
        self._zero = ClockComparison(Recorder(lambda: self.now_s + ahead_s), self.questions.append)

    def answer_all(self) -> None:
        while self.questions:
            question = self.questions.pop()
            self.now_s += self._travel_s
            answer = self._zero.answer(question)
            self.now_s += self._travel_s
            self.comparing.take(answer)


def test_workers_compare_several_times_at_first_and_then_with_every_tick() -> None:
    pair = Pair(ahead_s=7.0, travel_s=0.001)
    pair.recorder.start()
    pair.comparing.begin()
    pair.answer_all()
    compared = pair.recorder.events()
    assert len(compared) == AT_ONCE
    assert all(isinstance(event, events.Compared) for event in compared)
    assert compared[0] == events.Compared(pytest.approx(50.002), pytest.approx(7.0), pytest.approx(0.002))
    pair.comparing.tick()
    pair.answer_all()
    assert len(pair.recorder.events()) == AT_ONCE + PER_TICK
    pair.recorder.stop()
    pair.comparing.tick()
    assert pair.questions == []


def test_clocks_are_not_compared_while_nothing_is_recorded() -> None:
    pair = Pair(ahead_s=7.0, travel_s=0.001)
    pair.comparing.begin()
    pair.comparing.tick()
    assert pair.questions == []


def test_clocks_are_compared_as_soon_as_recording_begins() -> None:
    pair = Pair(ahead_s=7.0, travel_s=0.001)
    pair.comparing.begin()
    pair.recorder.start()
    pair.comparing.tick()
    pair.answer_all()
    assert len(pair.recorder.events()) == AT_ONCE


def test_an_answer_repeats_the_question() -> None:
    assert Pair(ahead_s=7.0, travel_s=0.0)._zero.answer(AskTime(3.0)) == Time(3.0, 57.0)


# Times on rank 0's clock while its estimate changes: never backwards, and eventually exact


def make(offset_s: float) -> tuple[Clocks, Conversion]:
    clocks = Clocks()
    clocks.compare(0.0, offset_s, 0.1)
    conversion = Conversion(clocks)
    conversion.refresh()
    return clocks, conversion


def improve(clocks: Clocks, conversion: Conversion, offset_s: float) -> None:
    clocks.compare(0.0, offset_s, 0.0001)
    conversion.refresh()


def test_the_first_estimate_holds_for_every_time() -> None:
    _, conversion = make(100.0)
    assert conversion.convert(-5.0) == pytest.approx(95e6)
    assert conversion.convert(5.0) == pytest.approx(105e6)


def test_a_better_estimate_applies_to_later_times() -> None:
    clocks, conversion = make(100.0)
    before = conversion.convert(1.0)
    improve(clocks, conversion, 100.001)
    assert conversion.convert(1.0) == before
    assert conversion.convert(0.5) == pytest.approx(100.5e6)
    assert conversion.convert(1.1) == pytest.approx(101.101e6)


def test_behind_the_old_estimate_the_clock_runs_at_half_speed_until_both_agree() -> None:
    clocks, conversion = make(100.001)
    conversion.convert(1.0)
    improve(clocks, conversion, 100.0)
    assert conversion.convert(1.001) == pytest.approx(101.0015e6)
    assert conversion.convert(1.002) == pytest.approx(101.002e6)
    assert conversion.convert(1.003) == pytest.approx(101.003e6)


@pytest.mark.parametrize("seed", range(20))
def test_conversion_is_monotonic_and_repeatable(seed: int) -> None:
    draw = random.Random(seed)
    clocks, conversion = make(100.0)
    told: dict[float, float] = {}
    for second in range(100):
        clocks.compare(float(second), 100.0 + draw.uniform(-0.01, 0.01), draw.uniform(0.0001, 0.02))
        conversion.refresh()
        for time_s in (draw.uniform(second - 3, second), draw.uniform(second, second + 1)):
            told[time_s] = conversion.convert(time_s)
    assert [conversion.convert(time_s) for time_s in told] == list(told.values())
    in_order = [told[time_s] for time_s in sorted(told)]
    assert in_order == sorted(in_order)
