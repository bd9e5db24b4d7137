"""Clocks of two hosts: what a comparison is worth, and what is made of many."""

from __future__ import annotations

import random

import pytest

from undertow.coordinator.messages import AskTime, Time
from undertow.runtime.comparing import AT_ONCE, Comparing
from undertow.trace import notes
from undertow.trace.clocks import LEAST_SPAN_S, Clocks
from undertow.trace.recorder import Recorder


def test_without_a_comparison_a_time_stays_as_it_is() -> None:
    clocks = Clocks()
    assert not clocks.is_compared
    assert clocks.convert(12.5) == 12.5


def test_the_fastest_round_trip_decides() -> None:
    clocks = Clocks()
    clocks.compare(1.0, 100.4, 0.9)
    clocks.compare(2.0, 100.0001, 0.0002)
    clocks.compare(3.0, 100.3, 0.7)
    assert clocks.is_compared
    assert clocks.convert(5.0) == pytest.approx(105.0001)


def test_a_drift_is_found_and_carried_on() -> None:
    clocks = Clocks()
    for second in range(60):
        clocks.compare(float(second), 100.0 + 0.00005 * second, 0.0001)
    assert clocks.convert(100.0) == pytest.approx(200.0 + 0.00005 * 100, abs=1e-6)


def test_comparisons_that_met_something_do_not_disturb_the_drift() -> None:
    clocks = Clocks()
    for second in range(60):
        clocks.compare(float(second), 100.0 + 0.00005 * second, 0.0001)
        clocks.compare(second + 0.5, 100.01 * (second % 3), 0.02)
    assert clocks.convert(100.0) == pytest.approx(200.0 + 0.00005 * 100, abs=1e-6)


def test_comparisons_of_a_moment_show_no_drift() -> None:
    clocks = Clocks()
    for tenth in range(5):
        clocks.compare(tenth / 10, 100.0 + 0.00002 * tenth, 0.0001)
    assert clocks.convert(1000.0) == pytest.approx(1100.0, abs=0.0001)


def test_no_clock_drifts_faster_than_a_clock_can() -> None:
    clocks = Clocks()
    clocks.compare(0.0, 0.0, 0.001)
    clocks.compare(LEAST_SPAN_S, 1.0, 0.001)
    assert abs(clocks.convert(LEAST_SPAN_S + 1) - clocks.convert(LEAST_SPAN_S) - 1) <= 0.00031


@pytest.mark.parametrize("seed", range(20))
def test_the_error_is_below_half_of_the_fastest_round_trip(seed: int) -> None:
    """Both ways of a round trip take as long as they like, most of them far too long."""
    draw, skew_s = random.Random(seed), 1234.5
    now_s, clocks, fastest_s = 0.0, Clocks(), float("inf")

    def travel() -> float:
        return 0.00004 + draw.expovariate(1 / 0.00005) + (draw.random() < 0.5) * draw.uniform(0.001, 0.03)

    for _ in range(40):
        asked_s, there_s = now_s, now_s + travel()
        heard_s = there_s + travel()
        clocks.compare(heard_s, there_s + skew_s - (asked_s + heard_s) / 2, heard_s - asked_s)
        fastest_s = min(fastest_s, heard_s - asked_s)
        now_s = heard_s + 0.1
    assert abs(clocks.convert(now_s) - (now_s + skew_s)) <= fastest_s / 2


class Pair:
    """A worker that compares, and rank 0, whose clock shows more; every word takes a while."""

    def __init__(self, ahead_s: float, travel_s: float) -> None:
        self.now_s = 50.0
        self.questions: list[AskTime] = []
        self.recorder = Recorder(lambda: self.now_s)
        self.comparing = Comparing(self.recorder, self.questions.append)
        self._travel_s = travel_s
        self._zero = Comparing(Recorder(lambda: self.now_s + ahead_s), self.questions.append)

    def answer_all(self) -> None:
        while self.questions:
            question = self.questions.pop()
            self.now_s += self._travel_s
            answer = self._zero.answer(question)
            self.now_s += self._travel_s
            self.comparing.hear(answer)


def test_workers_that_have_met_compare_several_times_and_then_with_every_tick() -> None:
    pair = Pair(ahead_s=7.0, travel_s=0.001)
    pair.recorder.start()
    pair.comparing.begin()
    pair.answer_all()
    compared = pair.recorder.notes()
    assert len(compared) == AT_ONCE + 1
    assert all(isinstance(note, notes.Compared) for note in compared)
    assert compared[0] == notes.Compared(pytest.approx(50.002), pytest.approx(7.0), pytest.approx(0.002))
    pair.comparing.tick()
    pair.answer_all()
    assert len(pair.recorder.notes()) == AT_ONCE + 2
    pair.recorder.stop()
    pair.comparing.tick()
    assert pair.questions == []


def test_nobody_compares_while_nothing_is_recorded() -> None:
    pair = Pair(ahead_s=7.0, travel_s=0.001)
    pair.comparing.begin()
    pair.comparing.tick()
    assert pair.questions == []


def test_who_begins_to_record_later_begins_to_compare_then() -> None:
    pair = Pair(ahead_s=7.0, travel_s=0.001)
    pair.comparing.begin()
    pair.recorder.start()
    pair.comparing.tick()
    pair.answer_all()
    assert len(pair.recorder.notes()) == AT_ONCE + 1


def test_an_answer_says_what_was_asked() -> None:
    assert Pair(ahead_s=7.0, travel_s=0.0)._zero.answer(AskTime(3.0)) == Time(3.0, 57.0)
