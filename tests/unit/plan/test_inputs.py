"""Ranks that all train on the same inputs are found when that is certain, and told once."""

from __future__ import annotations

from undertow.plan.inputs import ENOUGH, SameInputs


def test_identical_changing_inputs_cause_one_warning() -> None:
    same = SameInputs()
    told = [same.compare([step, step]) for step in range(2 * ENOUGH)]
    assert told == [step == ENOUGH - 1 for step in range(2 * ENOUGH)]


def test_constant_inputs_cause_no_warning() -> None:
    same = SameInputs()
    assert not any(same.compare([7, 7]) for _ in range(10))


def test_different_inputs_cause_no_warning_and_restart_the_count() -> None:
    same = SameInputs()
    assert not any(same.compare([step, 0 if step % ENOUGH else step]) for step in range(1, 20))
    assert not any(same.compare([None, None]) for _ in range(10))
