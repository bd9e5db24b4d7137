"""The flow: one round of a key at a time, contributions in the order in which they were made."""

from __future__ import annotations

import pytest

from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution, Flow
from undertow.engine.core.rounds import KeySpec, Op


def flow() -> Flow:
    made = Flow()
    made.add([KeySpec(1, 2, DType.FLOAT32, Op.SUM, owner=0), KeySpec(2, 2, DType.FLOAT32, Op.SUM, owner=3)])
    return made


def part(key: int = 1, *, is_pull: bool = False) -> Contribution:
    return Contribution(key, None, None, 0, lambda contribution: None, is_pull=is_pull)


def test_the_first_contribution_of_a_key_is_sent_at_once() -> None:
    worker, first = flow(), part()
    assert worker.contribute(first) is first
    assert first.step == 1
    assert worker.step(1) == 1


def test_the_next_one_waits_for_the_answer_of_the_one_before() -> None:
    worker, first, second, third = flow(), part(), part(), part()
    worker.contribute(first)
    assert worker.contribute(second) is None
    assert worker.contribute(third) is None
    assert worker.answer(1) is second
    assert second.step == 2
    assert worker.answer(1) is third
    assert worker.answer(1) is None


def test_other_keys_do_not_wait() -> None:
    worker, other = flow(), part(2)
    worker.contribute(part(1))
    assert worker.contribute(other) is other


def test_only_the_round_on_its_way_is_awaited() -> None:
    worker, first = flow(), part()
    assert worker.awaited(1, 0) is None
    worker.contribute(first)
    worker.contribute(part())
    assert worker.awaited(1, 1) is first
    assert worker.awaited(1, 2) is None
    assert worker.awaited(2, 1) is None
    assert worker.awaited(99, 1) is None
    worker.answer(1)
    assert worker.awaited(1, 1) is None


def test_a_pull_takes_part_in_no_round_but_keeps_its_place() -> None:
    worker, push, pull, after = flow(), part(), part(is_pull=True), part()
    worker.contribute(push)
    worker.contribute(pull)
    worker.contribute(after)
    assert worker.answer(1) is pull
    assert pull.step == 1
    assert worker.answer(1) is after
    assert after.step == 2


def test_pending_returns_an_unanswered_contribution() -> None:
    worker, second = flow(), part(2)
    assert worker.pending() is None
    worker.contribute(second)
    assert worker.pending() is second
    worker.answer(2)
    assert worker.pending() is None


def test_blocked_by_names_an_owner_that_still_has_to_answer() -> None:
    worker = flow()
    worker.contribute(part(2))
    assert worker.blocked_by({3}) == 3
    assert worker.blocked_by({0, 1, 2}) is None
    worker.answer(2)
    assert worker.blocked_by({3}) is None


def test_all_resume_together_after_a_join() -> None:
    worker = flow()
    worker.resume([1, 2], 7)
    after = part()
    worker.contribute(after)
    assert after.step == 8


def test_to_resume_in_the_middle_of_a_round_is_a_defect() -> None:
    worker = flow()
    worker.contribute(part())
    with pytest.raises(AssertionError, match="key 1 is in the middle of round 1"):
        worker.resume([1], 7)


def test_a_key_nobody_registered_is_a_defect() -> None:
    with pytest.raises(KeyError):
        flow().contribute(part(99))
