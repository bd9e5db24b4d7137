"""Weights that were overwritten by rank 0's are restored unless something else has changed them."""

from __future__ import annotations

import torch

from undertow.script.trained_models import OwnWeights

NAN = float("nan")


def fill(parameter: torch.Tensor, *values: float) -> None:
    parameter.data = torch.tensor(values)


def test_overwritten_weights_are_restored() -> None:
    one, same = torch.nn.Parameter(torch.tensor([1.0, NAN])), torch.nn.Parameter(torch.tensor([2.0, NAN]))
    own = OwnWeights()
    own.copy([one, same], lambda: fill(one, 5.0, NAN))
    assert list(own._replaced.keys()) == [one]
    own.restore()
    assert one.tolist()[0] == 1.0


def test_a_second_copy_keeps_the_original_values() -> None:
    parameter, own = torch.nn.Parameter(torch.ones(1)), OwnWeights()
    own.copy([parameter], lambda: fill(parameter, 2.0))
    own.copy([parameter], lambda: fill(parameter, 3.0))
    own.restore()
    assert parameter.item() == 1.0


def test_changes_by_the_script_between_two_copies_are_restored() -> None:
    parameter, own = torch.nn.Parameter(torch.ones(1)), OwnWeights()
    own.copy([parameter], lambda: fill(parameter, 2.0))
    fill(parameter, 7.0)
    own.copy([parameter], lambda: fill(parameter, 3.0))
    own.restore()
    assert parameter.item() == 7.0


def test_weights_that_were_changed_or_trained_since_stay() -> None:
    changed, trained = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    own = OwnWeights()
    own.copy([changed, trained], lambda: (fill(changed, 2.0), fill(trained, 2.0)))
    fill(changed, 9.0)
    own.forget([trained])
    own.restore()
    assert (changed.item(), trained.item()) == (9.0, 2.0)
