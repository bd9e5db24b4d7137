"""A model whose optimizer defers steps, and a plain one; functions to train, save and compare both."""

from __future__ import annotations

import functools
import io
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim

from tests.support.slow_group import SlowGroup, Twin
from undertow.torch import flush
from undertow.torch.pending.pending_tensors import find_gate

BATCH = torch.arange(12.0).reshape(3, 4) / 12


def make_net(*, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8, bias=bias), nn.Tanh(), nn.Linear(8, 8, bias=bias), nn.Tanh(), nn.Linear(8, 2, bias=bias)]
    return nn.Sequential(*layers)


momentum = functools.partial(optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
adam = functools.partial(optim.Adam, lr=0.01)


def make_twin(group: SlowGroup, make_optimizer: Callable[..., Any] = momentum, net: nn.Module | None = None) -> Twin:
    twin = Twin(net or make_net(), make_optimizer)
    group.deliver_all()  # the first weights
    return twin


def equal(ours: Any, theirs: Any) -> bool:
    """Return whether both are equal bit by bit, at any depth."""
    if isinstance(ours, torch.Tensor):
        return ours.dtype is theirs.dtype and torch.equal(ours, theirs)
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    return bool(ours == theirs)


def tensors_in(state: dict[str, Any]) -> list[torch.Tensor]:
    return [value for kept in state["state"].values() for value in kept.values() if isinstance(value, torch.Tensor)]


def check(twin: Twin) -> None:
    """Check that both trainings have given the same results."""
    state, expected = twin.optimizer.state_dict(), twin.plain_optimizer.state_dict()
    flush(twin.model)
    assert equal(list(twin.module.parameters()), list(twin.plain.parameters()))
    assert equal(state, expected)
    assert all(type(tensor) is torch.Tensor and not tensor.is_inference() for tensor in tensors_in(state))


def nets(twin: Twin) -> tuple[Any, Any]:
    return twin.module, twin.plain


def optimizers(twin: Twin) -> tuple[Any, Any]:
    return twin.optimizer, twin.plain_optimizer


def some_come(group: SlowGroup, chance: random.Random) -> None:
    for contribution in chance.sample(group.pending, chance.randint(0, len(group.pending))):
        group.deliver(contribution)


def train(twin: Twin, group: SlowGroup, *inputs: Any, steps: int = 5, after: Callable[[], Any] = lambda: None) -> None:
    """Train while gradients arrive before a step, after it, or when they are waited for, in any order."""
    chance = random.Random(steps)
    for _ in range(steps):
        twin.optimizer.zero_grad()
        twin.plain_optimizer.zero_grad()
        twin.backward(*inputs or (BATCH,))
        some_come(group, chance)
        waits = group.waits
        twin.step()
        assert group.waits == waits
        some_come(group, chance)
        after()


def is_deferred(parameter: torch.Tensor) -> bool:
    """Whether an update of this parameter is still to be made."""
    gate = find_gate(parameter)
    return gate is not None and gate.is_deferred


def same(ours: Any, theirs: Any) -> bool:
    """Whether these are the same tensors, one after the other."""
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def saved(value: Any) -> Any:
    """What torch loads of what it has saved of this."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
