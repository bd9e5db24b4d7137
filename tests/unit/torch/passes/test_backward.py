"""A backward pass involves other ranks if it reaches a parameter of a wrapped module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from undertow.torch import DistributedDataParallel
from undertow.torch.claims import claims, step_check
from undertow.torch.passes.backward import reaches_wrapped

pytestmark = pytest.mark.usefixtures("group")

BATCH = torch.ones(3, 4)


def ask(loss: torch.Tensor, **options: Any) -> bool:
    found: list[bool] = []
    assert loss.grad_fn is not None
    loss.grad_fn.register_prehook(lambda gradients: found.append(reaches_wrapped()))
    loss.backward(**options)
    return found == [True]


def test_a_pass_reaches_wrapped_parameters_by_any_forward() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model = DistributedDataParallel(net, init_sync=False)
    assert ask(model(BATCH).sum())
    assert ask(net[1](BATCH).sum())
    with model.no_sync():
        assert ask(model(BATCH).sum())
    assert ask(model(BATCH).sum(), inputs=[net[0].bias])


def test_a_pass_that_reaches_nothing_wrapped_is_local() -> None:
    net, probe, alone = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    claims.exempt(alone)
    model = DistributedDataParallel(net, init_sync=False)
    image = BATCH.clone().requires_grad_()
    assert not ask(probe(net(BATCH).detach()).sum())
    assert not ask(alone(BATCH).sum())
    assert not ask(net(image).sum(), inputs=[image])
    net.requires_grad_(False)
    assert not ask(model(image).sum())


def test_outside_a_pass_the_answer_is_unknown() -> None:
    model = DistributedDataParallel(nn.Linear(4, 1), init_sync=False)
    assert reaches_wrapped()
    assert not ask(nn.Linear(4, 1)(BATCH).sum())
    assert model is not None


def test_without_a_wrapper_every_pass_may_concern_others() -> None:
    step_check.forget_all()  # modules that earlier tests have wrapped
    assert ask(nn.Linear(4, 1)(BATCH).sum())
