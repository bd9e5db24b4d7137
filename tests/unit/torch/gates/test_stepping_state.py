"""The optimizer's state while steps are deferred: read, replaced, loaded, copied."""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

from tests.support.slow_group import SlowGroup, Twin
from tests.support.stepping import BATCH, adam, check, equal, make_net, make_twin, nets, optimizers, train


def test_a_read_of_the_state_returns_it_after_the_step(group: SlowGroup) -> None:
    twin = make_twin(group)
    twin.train(BATCH)
    ours, theirs = (
        [optimizer.state[parameter]["momentum_buffer"] for parameter in net.parameters()]
        for net, optimizer in zip(nets(twin), optimizers(twin), strict=True)
    )
    assert equal(ours, theirs)


@pytest.mark.parametrize(
    "replace",
    [
        lambda optimizer, state: setattr(optimizer, "state", state),
        lambda optimizer, state: optimizer.__setstate__({"state": state}),
    ],
)
def test_a_new_state_is_not_used_by_an_earlier_deferred_step(group: SlowGroup, replace: Callable[..., Any]) -> None:
    twin = make_twin(group)
    twin.train(BATCH)
    twin.train(BATCH)
    for optimizer in optimizers(twin):
        replace(optimizer, defaultdict(dict))
    check(twin)
    train(twin, group)
    check(twin)


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_state_is_loaded_in_the_middle_of_a_run(group: SlowGroup, is_pending: bool) -> None:
    other = make_twin(group, adam)
    train(other, group, BATCH * 3)
    state = copy.deepcopy(other.plain_optimizer.state_dict())
    twin = make_twin(group, adam)
    twin.train(BATCH)
    if is_pending:
        twin.backward(BATCH)
    for optimizer in optimizers(twin):
        optimizer.load_state_dict(copy.deepcopy(state))
    twin.step()
    train(twin, group)
    check(twin)


def test_a_state_moves_to_an_ordinary_optimizer_and_back(group: SlowGroup) -> None:
    twin = make_twin(group, adam)
    train(twin, group, steps=2)
    twin.plain_optimizer.load_state_dict(twin.optimizer.state_dict())
    twin.optimizer.load_state_dict(copy.deepcopy(twin.plain_optimizer.state_dict()))
    train(twin, group, steps=2)
    check(twin)


def unpickled(optimizer: Any) -> Any:
    return pickle.loads(pickle.dumps(optimizer))  # noqa: S301


@pytest.mark.parametrize("duplicate", [copy.deepcopy, unpickled])
def test_a_copy_is_an_ordinary_optimizer(group: SlowGroup, duplicate: Callable[[Any], Any]) -> None:
    twin = make_twin(group, adam)
    twin.train(BATCH)
    copied = duplicate(twin.optimizer)
    assert type(copied) is optim.Adam
    assert equal(copied.state_dict(), twin.plain_optimizer.state_dict())
    assert equal(copied.param_groups[0]["params"], list(twin.plain.parameters()))
    for parameter in copied.param_groups[0]["params"]:
        assert type(parameter) is nn.Parameter
        parameter.grad = torch.ones_like(parameter)
    copied.step()
    train(twin, group)
    check(twin)


def test_the_optimizer_looks_unchanged(group: SlowGroup) -> None:
    twin = make_twin(group)
    assert repr(twin.optimizer) == repr(twin.plain_optimizer)
    assert isinstance(twin.optimizer, optim.SGD)
    assert type(twin.optimizer).__qualname__ == "SGD"
    assert type(twin.optimizer).__module__ == optim.SGD.__module__


@pytest.mark.parametrize("zero", [0, torch.tensor(0)], ids=["number", "tensor"])
def test_an_optimizer_that_counts_steps_in_its_group_counts_each_once(group: SlowGroup, zero: Any) -> None:
    class Decaying(optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1, "taken": copy.deepcopy(zero)})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for of_group in self.param_groups:
                of_group["taken"] += 1
                for parameter in of_group["params"]:
                    if parameter.grad is not None:
                        parameter -= of_group["lr"] / of_group["taken"] * parameter.grad

    twin = Twin(make_net(), Decaying, separable=True)
    group.deliver_all()
    train(twin, group)
    check(twin)
