"""Ranks that train on the same inputs are noticed."""

from __future__ import annotations

import torch

from undertow.plan.inputs import ENOUGH, SameInputs
from undertow.torch.inputs import digest_inputs


def test_changing_inputs_that_are_the_same_everywhere_are_told_once() -> None:
    same = SameInputs()
    told = [same.compare([step, step]) for step in range(2 * ENOUGH)]
    assert told == [step == ENOUGH - 1 for step in range(2 * ENOUGH)]


def test_inputs_that_never_change_say_nothing() -> None:
    same = SameInputs()
    assert not any(same.compare([7, 7]) for _ in range(10))


def test_different_inputs_say_nothing_and_start_anew() -> None:
    same = SameInputs()
    assert not any(same.compare([step, 0 if step % ENOUGH else step]) for step in range(1, 20))
    assert not any(same.compare([None, None]) for _ in range(10))


def test_a_digest_follows_values_and_shapes_however_nested() -> None:
    tensor = torch.arange(6.0)
    assert digest_inputs((tensor,), {}) == digest_inputs((tensor.clone(),), {})
    assert digest_inputs((), {"x": [tensor + 1]}) != digest_inputs((), {"x": [tensor]})
    assert digest_inputs(tensor.view(2, 3)) != digest_inputs(tensor)


def test_what_has_no_cheap_tensor_has_no_digest() -> None:
    assert digest_inputs((3, "word"), {}) is None
    assert digest_inputs(torch.ones(2, device="meta"), torch.ones(0)) is None
    assert digest_inputs(torch.ones(3, 2, dtype=torch.bool), torch.tensor(1)) is not None
