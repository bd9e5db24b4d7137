"""Order of turns: the job with the least device time per weight goes first, and none keeps a turn for ever."""

from __future__ import annotations

import pytest

from undertow.crossover.messages import DeviceTime, Grant, NowAlone, NowShared, Recall
from undertow.crossover.turns import CREDIT_S, FAR, LEASE_S, YOUNG, JobPosition, JobTerms, Overdue, Turns

A, B, C = 1, 2, 3  # members, of the jobs a, b and c
SECOND_A = 11  # one more worker of a


def make_turns(*jobs: str | JobTerms) -> Turns:
    """Return turns of jobs with one worker each, none of which computes."""
    turns = Turns()
    for member, job in enumerate(jobs, 1):
        turns.join(member, job if isinstance(job, JobTerms) else JobTerms(job=job), now=0.0)
    for member in range(1, len(jobs) + 1):
        turns.give(member, now=0.0)
    return turns


def compute(turns: Turns, member: int, begin: float, end: float) -> None:
    """Let a worker compute from one time to another."""
    assert (member, Grant()) in turns.ask(member, begin)
    turns.give(member, end)


# Alone


def test_a_worker_that_is_alone_need_not_ask() -> None:
    turns = Turns()
    assert turns.join(A, JobTerms(job="a"), now=0.0) == [(A, NowAlone())]
    assert turns.join(SECOND_A, JobTerms(job="a"), now=0.0) == [(SECOND_A, NowAlone())]
    assert turns.ask(A, now=1.0) == [(A, Grant())]
    assert turns.turn is None
    assert turns.deadline_s is None


def test_a_job_that_computes_while_another_joins_keeps_its_turn_until_it_gives_back() -> None:
    turns = Turns()
    turns.join(A, JobTerms(job="a"), now=0.0)
    turns.join(SECOND_A, JobTerms(job="a"), now=0.0)
    assert turns.join(B, JobTerms(job="b"), now=5.0) == [(A, NowShared()), (SECOND_A, NowShared())]
    assert turns.ask(B, now=5.0) == []
    assert turns.give(SECOND_A, now=5.0) == []
    assert turns.give(A, now=7.0) == [(B, Grant())]


def test_the_third_job_changes_nothing_for_the_others() -> None:
    turns = make_turns("a", "b")
    assert turns.join(C, JobTerms(job="c"), now=1.0) == []
    assert turns.join(SECOND_A, JobTerms(job="a"), now=1.0) == []


def test_an_ask_from_before_it_was_alone_does_not_free_the_turn() -> None:
    turns = Turns()
    turns.join(A, JobTerms(job="a"), now=0.0)
    turns.join(B, JobTerms(job="b"), now=0.0)
    assert turns.ask(A, now=0.1) == []  # a has heard neither that it is alone nor that it is not
    turns.ask(B, now=0.1)
    assert turns.turn is not None
    assert turns.turn.computing == {A}
    assert turns.give(A, now=0.2) == [(B, Grant())]
    turns.give(B, now=0.3)
    assert turns.ask(A, now=0.4) == [(A, Grant())]


def test_an_old_ask_is_recognised_even_after_the_lease() -> None:
    turns = Turns(lease_s=1.0)
    turns.join(A, JobTerms(job="a"), now=0.0)
    turns.join(B, JobTerms(job="b"), now=0.0)
    turns.ask(B, now=0.0)
    turns.tick(now=1.0)
    assert turns.ask(A, now=1.1) == []
    assert turns.accounts["a"].waiting == {}


def test_a_waiting_worker_that_is_left_alone_computes() -> None:
    turns = make_turns("a", "b")
    turns.ask(A, now=0.0)
    turns.ask(B, now=0.0)
    assert turns.leave(A, now=1.0) == [(B, NowAlone())]
    assert turns.turn is None
    assert turns.accounts["b"].waiting == {}
    assert turns.accounts["b"].waited_s == 1.0
    assert turns.join(C, JobTerms(job="c"), now=2.0) == [(B, NowShared())]
    turns.leave(C, now=3.0)
    assert turns.leave(B, now=4.0) == []
    assert turns.accounts == {}


# Order


def test_the_job_with_the_least_device_time_goes_first() -> None:
    turns = make_turns("a", "b", "c")
    compute(turns, A, 0.0, 3.0)
    compute(turns, B, 3.0, 5.0)
    turns.ask(C, now=5.0)
    turns.ask(A, now=5.0)
    turns.ask(B, now=5.0)
    assert turns.give(C, now=6.0) == [(B, Grant())]
    assert turns.give(B, now=7.0) == [(A, Grant())]


def test_the_order_of_equal_jobs_does_not_depend_on_their_arrival() -> None:
    for order in ((A, B), (B, A)):
        turns = make_turns("a", "b", "c")
        turns.ask(C, now=0.0)
        for member in order:
            turns.ask(member, now=0.0)
        assert turns.give(C, now=0.0) == [(A, Grant())]


def test_device_time_is_in_proportion_to_the_weight() -> None:
    turns = make_turns(JobTerms(job="a", weight=3.0), "b", "c")
    compute(turns, A, 0.0, 5.0)
    compute(turns, B, 5.0, 7.0)
    turns.ask(C, now=7.0)
    turns.ask(B, now=7.0)
    turns.ask(A, now=7.0)
    assert turns.give(C, now=7.0) == [(A, Grant())]  # 5 / 3 < 2


def test_a_position_overrides_the_arbiters_own_count() -> None:
    turns = make_turns("a", "b", "c")
    compute(turns, A, 0.0, 5.0)
    turns.ask(C, now=5.0)
    turns.ask(A, now=5.0, position=JobPosition(0.5, 1.0))
    turns.ask(B, now=5.0, position=JobPosition(0.6, 1.0))
    assert turns.give(C, now=5.0) == [(A, Grant())]
    turns.give(A, now=6.0)
    turns.ask(A, now=6.0)  # without a position it has the last one
    assert turns.accounts["a"].key_s == 0.5


def test_a_new_job_starts_with_the_count_of_the_job_served_last() -> None:
    turns = make_turns("a", "b")
    compute(turns, A, 0.0, 3.0)
    compute(turns, A, 4.0, 5.0)
    turns.join(C, JobTerms(job="c"), now=5.0)
    assert turns.accounts["c"].virtual_s == 3.0
    assert turns.accounts["b"].virtual_s == 0.0


# Several workers of one job


def test_all_workers_of_a_job_compute_in_its_turn() -> None:
    turns = make_turns("a", "b")
    turns.join(SECOND_A, JobTerms(job="a"), now=0.0)
    assert turns.ask(A, now=0.0) == [(A, Grant())]
    assert turns.ask(SECOND_A, now=1.0) == [(SECOND_A, Grant())]
    turns.ask(B, now=2.0)
    assert turns.give(A, now=2.0) == []
    assert turns.give(SECOND_A, now=3.0) == [(B, Grant())]
    assert turns.accounts["a"].used_s == 3.0  # of the device, not of the workers
    assert turns.accounts["a"].turns == 1


def test_all_waiting_workers_of_a_job_are_granted_together() -> None:
    turns = make_turns("a", "b")
    turns.join(SECOND_A, JobTerms(job="a"), now=0.0)
    turns.ask(B, now=0.0)
    turns.ask(A, now=0.0)
    turns.ask(SECOND_A, now=0.0)
    assert turns.give(B, now=1.0) == [(A, Grant()), (SECOND_A, Grant())]


def test_no_worker_joins_a_turn_while_another_job_goes_first() -> None:
    turns = make_turns("a", "b")
    turns.join(SECOND_A, JobTerms(job="a"), now=0.0)
    turns.ask(A, now=0.0, position=JobPosition(1.0, 1.0))
    turns.ask(B, now=0.9, position=JobPosition(0.8, 1.0))  # neither is the turn young nor is b far behind
    assert turns.ask(SECOND_A, now=0.9, position=JobPosition(1.0, 1.0)) == []
    assert turns.give(A, now=1.0) == [(B, Grant())]


# Recalls


def test_a_young_turn_is_recalled() -> None:
    turns = make_turns("a", "b")
    turns.ask(B, now=0.0, position=JobPosition(1.0, 1.0))
    assert turns.ask(A, now=YOUNG - 0.01, position=JobPosition(1.0, 1.0)) == [(B, Recall())]
    assert turns.give(B, now=0.2) == [(A, Grant())]
    turns.ask(B, now=0.2, position=JobPosition(1.0, 1.0))
    assert turns.give(A, now=1.0) == [(B, Grant())]


def test_an_old_turn_is_not_recalled() -> None:
    turns = make_turns("a", "b")
    turns.ask(B, now=0.0, position=JobPosition(1.0, 1.0))
    assert turns.ask(A, now=YOUNG + 0.01, position=JobPosition(1.0, 1.0)) == []


def test_how_young_a_turn_is_depends_on_a_step_of_its_job() -> None:
    turns = make_turns("a", JobTerms(job="b", weight=10.0))
    turns.ask(B, now=0.0, position=JobPosition(1.0, 1.0))  # a step takes ten seconds
    assert turns.ask(A, now=10 * YOUNG - 0.01, position=JobPosition(1.0, 1.0)) == [(B, Recall())]


def test_a_job_that_is_far_behind_does_not_wait() -> None:
    for steps_behind, answer in ((FAR - 0.01, []), (FAR + 0.01, [(A, Recall())])):
        turns = make_turns("a", "b")
        turns.ask(A, now=0.0, position=JobPosition(5.0, 1.0))
        assert turns.ask(B, now=0.2, position=JobPosition(5.0 - 0.7 * steps_behind, 0.7)) == answer


def test_a_holder_nearer_to_the_end_of_its_step_is_not_recalled() -> None:
    for now, answer in ((0.2, [(A, Recall())]), (0.4, [])):
        turns = make_turns("a", "b")
        turns.ask(A, now=0.0, position=JobPosition(5.0, 1.0))
        assert turns.ask(B, now=now, position=JobPosition(0.0, 0.7)) == answer


def test_a_young_turn_after_another_jobs_turn_is_not_recalled() -> None:
    turns = make_turns("a", "b")
    turns.ask(A, now=0.0, position=JobPosition(0.0, 1.0))
    turns.ask(B, now=0.5, position=JobPosition(1.0, 1.0))
    assert turns.give(A, now=1.0) == [(B, Grant())]
    assert turns.ask(A, now=1.01, position=JobPosition(0.9, 1.0)) == []  # behind by a hair: that was no race


def test_the_rest_of_a_step_starts_again_with_the_next() -> None:
    turns = make_turns("a", "b")
    compute(turns, A, 0.0, 0.9)
    turns.mark_step(A, now=0.9)
    turns.ask(A, now=0.9, position=JobPosition(5.0, 1.0))
    assert turns.ask(B, now=1.1, position=JobPosition(0.0, 0.7)) == [(A, Recall())]


def test_far_behind_is_measured_by_the_shorter_step() -> None:
    turns = make_turns("a", "b")
    turns.ask(A, now=0.0, position=JobPosition(5.0, 1.0))
    assert turns.ask(B, now=0.5, position=JobPosition(5.0 - 0.06, 0.1)) == [(A, Recall())]


def test_a_job_that_is_ahead_never_recalls() -> None:
    turns = make_turns("a", "b")
    turns.ask(A, now=0.0, position=JobPosition(1.0, 1.0))
    assert turns.ask(B, now=0.0, position=JobPosition(1.1, 1.0)) == []


def test_a_turn_is_recalled_once_and_no_worker_joins_it_then() -> None:
    turns = make_turns("a", "b", "c")
    turns.join(SECOND_A, JobTerms(job="a"), now=0.0)
    turns.ask(A, now=0.0, position=JobPosition(5.0, 1.0))
    assert turns.ask(B, now=0.5, position=JobPosition(0.0, 0.4)) == [(A, Recall())]
    assert turns.ask(C, now=0.5, position=JobPosition(0.0, 0.4)) == []
    turns.give(B, now=0.6)
    turns.give(C, now=0.6)
    assert turns.ask(SECOND_A, now=0.7, position=JobPosition(5.0, 1.0)) == []  # it ends in a moment
    assert turns.give(A, now=0.8) == [(SECOND_A, Grant())]


def test_an_urgent_job_recalls_any_other() -> None:
    turns = make_turns("a", JobTerms(job="b", is_urgent=True), "c")
    turns.ask(A, now=0.0, position=JobPosition(1.0, 1.0))
    assert turns.ask(B, now=0.9, position=JobPosition(99.0, 1.0)) == [(A, Recall())]
    turns.ask(C, now=0.9)
    assert turns.give(A, now=1.0) == [(B, Grant())]
    assert turns.ask(A, now=1.0, position=JobPosition(0.0, 1.0)) == []  # nobody recalls it


def test_others_fill_the_gaps_of_an_urgent_job() -> None:
    turns = make_turns("a", JobTerms(job="b", is_urgent=True))
    turns.ask(B, now=0.0)
    turns.ask(A, now=0.0)
    assert turns.give(B, now=1.0) == [(A, Grant())]


def test_counts_decide_between_two_urgent_jobs() -> None:
    turns = make_turns(JobTerms(job="a", is_urgent=True), JobTerms(job="b", is_urgent=True))
    turns.ask(A, now=0.0, position=JobPosition(1.0, 1.0))
    assert turns.ask(B, now=0.9, position=JobPosition(0.9, 1.0)) == []


# The lease


def test_a_turn_that_exceeds_the_lease_passes_on_and_names_its_workers() -> None:
    turns = make_turns("a", "b")
    turns.join(SECOND_A, JobTerms(job="a"), now=0.0)
    turns.ask(A, now=1.0)
    turns.ask(SECOND_A, now=1.0)
    turns.ask(B, now=2.0)
    assert turns.deadline_s == 1.0 + LEASE_S
    assert turns.tick(now=1.0 + LEASE_S - 0.01) == []
    assert turns.tick(now=1.0 + LEASE_S) == [(A, Overdue(LEASE_S)), (SECOND_A, Overdue(LEASE_S)), (B, Grant())]


def test_without_waiting_jobs_there_is_no_lease() -> None:
    turns = make_turns("a", "b")
    turns.ask(A, now=0.0)
    assert turns.deadline_s is None
    assert turns.tick(now=10 * LEASE_S) == []


def test_a_late_give_after_the_lease_is_harmless() -> None:
    turns = make_turns("a", "b")
    turns.ask(A, now=0.0)
    turns.ask(B, now=0.0)
    turns.tick(now=LEASE_S)
    assert turns.give(A, now=LEASE_S + 1) == []
    assert turns.turn is not None
    assert turns.turn.computing == {B}
    turns.ask(A, now=LEASE_S + 2)
    assert turns.give(B, now=LEASE_S + 3) == [(A, Grant())]


# Workers that leave


def test_a_worker_that_leaves_frees_its_turn() -> None:
    turns = make_turns("a", "b", "c")
    turns.ask(A, now=0.0)
    turns.ask(B, now=0.0)
    assert turns.leave(A, now=1.0) == [(B, Grant())]
    assert set(turns.accounts) == {"b", "c"}


def test_a_worker_that_leaves_while_it_waits_is_not_granted() -> None:
    turns = make_turns("a", "b", "c")
    turns.ask(A, now=0.0)
    turns.ask(B, now=0.0)
    turns.leave(B, now=0.5)
    assert turns.give(A, now=1.0) == []


def test_one_worker_of_several_leaves() -> None:
    turns = make_turns("a", "b")
    turns.join(SECOND_A, JobTerms(job="a"), now=0.0)
    turns.ask(SECOND_A, now=0.0)
    turns.ask(B, now=0.0)
    assert turns.leave(SECOND_A, now=1.0) == [(B, Grant())]
    assert turns.accounts["a"].members == {A}


# Counts


def test_a_device_time_has_the_count_and_the_cost_of_a_step() -> None:
    turns = make_turns(JobTerms(job="a", weight=2.0), "b")
    compute(turns, A, 0.0, 1.0)
    assert turns.end_step(A, 1, now=1.0) == [(A, DeviceTime(1, virtual_s=0.5, cost_s=0.5))]
    compute(turns, A, 2.0, 5.0)
    assert turns.end_step(A, 2, now=5.0) == [(A, DeviceTime(2, virtual_s=2.0, cost_s=1.5))]


def test_the_cost_of_several_steps_is_averaged() -> None:
    turns = make_turns("a")
    turns.report(A, used_s=3.0)
    assert turns.end_step(A, 6, now=1.0, steps=6) == [(A, DeviceTime(6, virtual_s=3.0, cost_s=0.5))]


def test_the_report_of_a_lone_job_is_divided_by_its_workers() -> None:
    turns = make_turns(JobTerms(job="a", weight=2.0))
    turns.join(SECOND_A, JobTerms(job="a", weight=2.0), now=0.0)
    turns.report(A, used_s=3.0)
    turns.report(SECOND_A, used_s=3.0)
    assert turns.accounts["a"].used_s == 3.0
    assert turns.accounts["a"].virtual_s == 1.5
    turns.join(B, JobTerms(job="b"), now=1.0)
    assert turns.accounts["b"].virtual_s == 1.5


def test_credit_is_bounded_and_costs_no_step_anything() -> None:
    turns = make_turns("a", "b")
    for begin in range(0, 20, 2):
        compute(turns, A, begin, begin + 1.9)
    ahead_s = turns._virtual_s
    turns.ask(B, now=30.0)
    turns.give(B, now=30.5)
    assert turns.end_step(B, 1, now=31.0) == [(B, DeviceTime(1, pytest.approx(ahead_s - CREDIT_S), pytest.approx(0.5)))]


def test_a_grant_says_to_which_count_a_job_is_lifted() -> None:
    turns = make_turns("a", "b")
    turns.ask(A, now=0.0, position=JobPosition(100.0, 1.0))
    turns.give(A, now=1.0)
    assert turns.ask(B, now=1.0, position=JobPosition(1.0, 1.0)) == [(B, Grant(lift_s=100.0 - CREDIT_S))]
    turns.give(B, now=2.0)
    assert turns.ask(B, now=2.0, position=JobPosition(99.0, 1.0)) == [(B, Grant())]


def test_a_repeated_lift_counts_once() -> None:
    turns = make_turns("a", "b")
    compute(turns, A, 0.0, 1.0)
    for _ in range(5):
        turns.lift(A, to_s=98.0)
    turns.lift(A, to_s=3.0)
    assert turns.accounts["a"].virtual_s == 98.0
    compute(turns, A, 2.0, 3.0)
    assert turns.end_step(A, 2, now=3.0) == [(A, DeviceTime(2, virtual_s=99.0, cost_s=2.0))]  # of what it computed


def test_device_time_is_counted_once_whatever_calls_come() -> None:
    turns = make_turns("a", "b")
    turns.ask(A, now=1.0)
    for now in (1.5, 2.0, 2.0):
        turns.tick(now)
    turns.ask(B, now=3.0)
    assert turns.accounts["a"].used_s == 2.0
    turns.give(A, now=4.0)
    turns.give(B, now=6.0)
    assert (turns.accounts["a"].used_s, turns.accounts["b"].used_s) == (3.0, 2.0)
    assert turns.accounts["b"].waited_s == 1.0


def test_an_ask_gives_the_turn_back() -> None:
    turns = make_turns("a", "b")
    turns.ask(A, now=0.0)
    turns.ask(B, now=0.5)
    assert turns.ask(A, now=1.0) == [(B, Grant())]
