"""A worker's turn state: it asks only if it must, and computes only if it may."""

from __future__ import annotations

import pytest

from undertow.crossover.messages import (
    Ask,
    DeviceTime,
    EndStep,
    Give,
    Grant,
    Lift,
    Notice,
    NowAlone,
    NowShared,
    Recall,
    ToArbiter,
)
from undertow.crossover.turn_state import KEPT, REPORT_EVERY_S, DeviceTimes, TurnMode, TurnState, TurnTaker
from undertow.crossover.turns import JobPosition


def make_state(mode: TurnMode) -> TurnState:
    state = TurnState()
    if mode is not TurnMode.NO_ARBITER:
        state.attach()
    if mode is TurnMode.ALONE:
        state.handle(NowAlone(), now=0.0)
    assert state.mode is mode
    return state


def computing_state() -> TurnState:
    """Return the state of a worker whose turn the arbiter has granted."""
    state = make_state(TurnMode.SHARED)
    state.take(now=0.0)
    state.handle(Grant(), now=0.0)
    return state


# Without turns


@pytest.mark.parametrize("mode", [TurnMode.NO_ARBITER, TurnMode.ALONE])
def test_a_worker_does_not_ask_without_other_jobs(mode: TurnMode) -> None:
    state = make_state(mode)
    assert state.take(now=1.0) == []
    assert state.is_computing
    assert state.give(now=2.0) == []
    assert not state.is_computing


def test_a_lone_worker_reports_its_steps_a_few_times_per_second() -> None:
    state, said = make_state(TurnMode.ALONE), []
    for step in range(1, 101):
        state.take(now=0.01 * step)
        said += state.end_step(now=0.01 * step + 0.005)
    assert sum(word.steps for word in said if isinstance(word, EndStep)) > 60
    assert len(said) <= 1 + 1.0 / REPORT_EVERY_S
    assert said[0] == EndStep(1, 1, pytest.approx(0.005), 0.0, is_alone=True)  # the first step is always told
    second = said[1]
    assert isinstance(second, EndStep)
    assert second.is_alone
    assert second.compute_s == pytest.approx(0.005 * second.steps)
    assert second.step == 1 + second.steps


# With turns


def test_it_computes_when_it_is_granted_the_turn() -> None:
    state = make_state(TurnMode.SHARED)
    assert state.take(now=1.0) == [Ask()]
    assert state.take(now=1.5) == []  # once is enough
    assert (state.is_waiting, state.is_computing) == (True, False)
    state.handle(Grant(), now=3.0)
    assert (state.is_waiting, state.is_computing, state.is_granted) == (False, True, True)
    assert state.waited_s == 2.0
    assert state.take(now=3.0) == []
    assert state.give(now=4.0) == [Give()]
    assert state.give(now=4.0) == []


def test_a_worker_that_stops_waiting_sends_give_and_ignores_the_grant() -> None:
    state = make_state(TurnMode.SHARED)
    state.take(now=1.0)
    assert state.give(now=2.0) == [Give()]
    state.handle(Grant(), now=2.0)
    assert not state.is_computing
    assert not state.is_granted
    assert state.waited_s == 1.0


def test_a_step_ends_with_a_give_and_a_report() -> None:
    state = computing_state()
    state.give(now=2.0)
    state.note_network(0.5)
    state.take(now=2.5)
    state.handle(Grant(), now=2.5)
    assert state.end_step(now=3.5) == [Give(), EndStep(1, 1, 3.0, 0.5, is_alone=False)]
    state.take(now=3.5)
    state.handle(Grant(), now=4.0)
    assert state.end_step(now=5.0) == [Give(), EndStep(2, 1, 1.0, 0.0, is_alone=False)]


def test_a_recall_holds_until_it_has_given_back() -> None:
    state = computing_state()
    state.handle(Recall(), now=1.0)
    assert state.is_recalled
    state.give(now=1.0)
    assert not state.is_recalled
    state.handle(Recall(), now=1.0)  # it crossed the give
    assert not state.is_recalled


def test_an_ask_has_the_jobs_position_for_the_next_step() -> None:
    state = computing_state()
    for step in (1, 2, 3):
        state.handle(DeviceTime(step, 10.0 * step, 1.0), now=1.0)
        state.end_step(now=1.0)
    assert state.take(now=2.0) == [Ask(21.0, 1.0)]  # for step 4, of the count after step 2


def test_notices_change_nothing() -> None:
    state = computing_state()
    assert state.handle(Notice("a and b gain nothing"), now=1.0) == []
    assert state.is_granted


# NowShared comes and goes


def test_a_worker_that_computes_when_another_job_comes_holds_the_turn() -> None:
    state = make_state(TurnMode.ALONE)
    state.take(now=0.0)
    assert state.handle(NowShared(), now=0.1) == []
    assert state.is_granted
    state.handle(Recall(), now=0.1)
    assert state.is_recalled
    assert state.give(now=0.2) == [Give()]
    assert state.take(now=0.2) == [Ask()]


def test_a_worker_that_does_not_compute_then_gives_back() -> None:
    state = make_state(TurnMode.ALONE)
    assert state.handle(NowShared(), now=0.1) == [Give()]
    assert state.take(now=0.2) == [Ask()]


def test_uncounted_steps_are_reported_when_another_job_comes() -> None:
    state = make_state(TurnMode.ALONE)
    state.end_step(now=0.0)
    state.take(now=0.0)
    assert state.end_step(now=0.1) == []
    assert state.handle(NowShared(), now=0.2) == [EndStep(2, 1, 0.1, 0.0, is_alone=True), Give()]
    state.take(now=0.2)
    state.handle(Grant(), now=0.2)
    assert state.end_step(now=0.3)[1] == EndStep(3, 1, pytest.approx(0.1), 0.0, is_alone=False)


def test_a_worker_that_waits_when_the_others_leave_computes() -> None:
    state = make_state(TurnMode.SHARED)
    state.take(now=0.0)
    state.handle(NowAlone(), now=1.0)
    assert state.is_computing
    assert state.waited_s == 1.0
    state.handle(Grant(), now=1.1)  # it was on its way
    assert not state.is_granted
    assert state.give(now=2.0) == []


def test_a_worker_that_computes_when_the_others_leave_need_not_give_back() -> None:
    state = computing_state()
    state.handle(Recall(), now=1.0)
    state.handle(NowAlone(), now=1.0)
    assert state.is_computing
    assert not state.is_recalled
    assert state.give(now=2.0) == []


# Arbiters come and go


def test_a_worker_that_waits_when_the_arbiter_goes_computes() -> None:
    state = make_state(TurnMode.SHARED)
    state.take(now=0.0)
    state.detach(now=1.0)
    assert state.mode is TurnMode.NO_ARBITER
    assert state.is_computing
    assert state.give(now=2.0) == []


def test_at_a_new_arbiter_a_worker_finishes_its_turn_and_then_asks() -> None:
    state = make_state(TurnMode.NO_ARBITER)
    state.take(now=0.0)
    state.attach()
    state.handle(Recall(), now=0.5)  # it has no turn that could be recalled
    assert not state.is_recalled
    assert state.give(now=1.0) == []
    assert state.take(now=1.0) == [Ask()]


@pytest.mark.parametrize("how", ["lose", "solitude"])
def test_earlier_device_times_are_forgotten(how: str) -> None:
    state = computing_state()
    for step in (1, 2, 3):
        state.handle(DeviceTime(step, 10.0 * step, 1.0), now=1.0)
        state.end_step(now=1.0)
    if how == "lose":
        state.detach(now=2.0)
        state.attach()
    else:
        state.handle(NowAlone(), now=2.0)
        state.handle(NowShared(), now=2.0)
    assert state.take(now=3.0) == [Ask()]


# Positions


def times_after(*steps: int) -> DeviceTimes:
    """Return device times in which every step costs 2 s."""
    times = DeviceTimes()
    for step in steps:
        times.add(DeviceTime(step, 2.0 * step, 2.0))
    return times


def test_without_device_times_there_is_no_position() -> None:
    assert DeviceTimes().find_position(1) is None
    assert times_after(1).find_position(2) is None  # not all hosts know of step 1 yet


def test_the_position_comes_from_the_device_time_of_two_steps_before() -> None:
    assert times_after(1).find_position(3) == JobPosition(4.0, 2.0)
    assert times_after(1, 2).find_position(4) == JobPosition(6.0, 2.0)


def test_a_count_that_came_later_or_earlier_does_not_change_the_position() -> None:
    times = times_after(1, 2)
    times.add(DeviceTime(3, 100.0, 50.0))
    assert times.find_position(4) == times_after(1, 2).find_position(4)
    assert times_after(2).find_position(4) == times_after(1, 2).find_position(4)


def test_missing_device_times_are_estimated_from_the_cost_of_a_step() -> None:
    assert times_after(1).find_position(10) == JobPosition(18.0, 2.0)
    assert times_after(1, 2, 3).find_position(10) == JobPosition(18.0, 2.0)


def test_old_counts_are_not_kept() -> None:
    times = times_after(*range(1, 20))
    assert times.find_position(19 - KEPT + 1) is None
    assert times.find_position(19 - KEPT + 3) is not None


def test_another_arbiter_counts_from_zero() -> None:
    state = TurnState()
    state.attach()
    for step in (1, 2, 3):
        state.end_step(0.0)
        state.handle(DeviceTime(step, 2.0 * step, 2.0), 0.0)
    assert state.take(0.0) == [Ask(6.0, 2.0)]
    state.detach(1.0)
    state.give(1.0)
    state.attach()
    assert state.take(1.0) == [Ask()]


# Taking turns


class Taker(TurnTaker):
    """Worker whose arbiter grants every turn at once, on a clock that the test sets."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now_s)
        self.now_s = 0.0
        self.sent: list[ToArbiter] = []
        self.state.attach()

    def take(self) -> None:
        self._send(self.state.take(self.now_s))
        self.state.handle(Grant(), self.now_s)

    def _send(self, said: list[ToArbiter]) -> None:
        self.sent += said

    def pop_sent(self) -> list[ToArbiter]:
        sent, self.sent = self.sent, []
        return sent


@pytest.fixture
def taker() -> Taker:
    taker = Taker()
    taker.take()
    assert taker.pop_sent() == [Ask()]
    return taker


def test_a_recalled_turn_is_given_back_between_two_layers(taker: Taker) -> None:
    taker.make_way()
    assert taker.pop_sent() == []
    taker.state.handle(Recall(), 1.0)
    taker.make_way()
    assert taker.pop_sent() == [Give(), Ask()]


def test_after_a_wait_a_worker_takes_the_turn_that_it_had(taker: Taker) -> None:
    wait = taker.begin_wait()
    assert taker.pop_sent() == [Give()]
    taker.now_s = 3.0
    taker.end_wait(wait)
    assert taker.pop_sent() == [Ask()]
    taker.end_step()
    assert taker.pop_sent() == [Give(), EndStep(1, 1, 0.0, 3.0, is_alone=False)]
    taker.end_wait(taker.begin_wait())  # it did not compute before this one
    assert taker.pop_sent() == []


def test_an_update_takes_a_turn_and_gives_it_back(taker: Taker) -> None:
    taker.end_step()
    taker.pop_sent()
    taker.begin_update()
    assert taker.pop_sent() == [Ask()]
    taker.end_update()
    assert taker.pop_sent() == [Give()]
    taker.end_update()
    assert taker.pop_sent() == []


def test_an_update_within_a_pass_leaves_the_turn_to_the_pass(taker: Taker) -> None:
    taker.begin_update()
    taker.end_update()
    assert taker.pop_sent() == []
    assert taker.state.is_computing


def test_a_lift_from_another_worker_goes_to_the_arbiter(taker: Taker) -> None:
    taker.handle_relayed(Lift(3.0))
    assert taker.pop_sent() == [Lift(3.0)]
