"""Training with gates, drawn from a seed, beside the same training without gates.

The other worker's gradient is always three times ours, so the mean is twice ours.  A gradient that is not the mean and
a value without its update show as differences.  The driver decides when results come.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from undertow.torch import flush, parallelize

OTHER = 3  # times our gradient
MEAN = 2  # of one and three
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
}


class Net(nn.Module):
    """Model with tied weights that uses its layers in the caller's order, in which some may be missing or repeated."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self._make_layers()

    def _make_layers(self) -> None:
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(4))
        first, last = self.layers[0], self.layers[3]
        assert isinstance(first, nn.Linear)
        last.weight = first.weight

    def forward(self, inputs: torch.Tensor, order: list[int]) -> torch.Tensor:
        for index in order:
            inputs = torch.tanh(self.layers[index](inputs)) * self.scale
        return inputs


class Twin:
    """Model and optimizer twice: with gates, and as a single process would train them with the mean."""

    def __init__(self, module: nn.Module, make_optimizer: Callable[[Any], Any], **options: Any) -> None:
        self.in_backward = False  # while gates are closing
        self.plain = copy.deepcopy(module)
        self.plain_optimizer = make_optimizer(self.plain.parameters())
        self.module = module
        self.model, self.optimizer = parallelize(module, make_optimizer(module.parameters()), **options)

    def backward(self, *inputs: Any) -> None:
        loss = self.model(*inputs).sum()
        self.in_backward = True
        loss.backward()
        self.in_backward = False
        self.plain(*inputs).sum().backward()
        for parameter in self.plain.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(MEAN)

    def step(self) -> None:
        self.optimizer.step()
        self.plain_optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()
        self.plain_optimizer.zero_grad()

    def train(self, *inputs: Any) -> None:
        self.zero_grad()
        self.backward(*inputs)
        self.step()

    def find_difference(self) -> str | None:
        """Return which value or gradient is the first to differ; None if all are equal."""
        flush(self.model)
        for (name, ours), theirs in zip(self.module.named_parameters(), self.plain.parameters(), strict=True):
            if not torch.equal(ours, theirs):
                return f"the value of {name}"
            if (ours.grad is None) != (theirs.grad is None):
                return f"whether {name} has a gradient"
            if ours.grad is not None and theirs.grad is not None and not torch.equal(ours.grad, theirs.grad):
                return f"the gradient of {name}"
        return None


def train(twin: Twin, pick: random.Random, deliver_some: Callable[[], None]) -> None:
    """Train a few steps, with random calls of a user between them."""
    inputs = torch.ones(2, 4)
    for _ in range(pick.randint(1, 5)):
        order = pick.choices(range(4), k=pick.randint(1, 5))
        if pick.random() < 0.8:
            twin.zero_grad()
        deliver_some()
        twin.backward(inputs, order)
        deliver_some()
        _do_something(twin, pick)
        twin.step()
        _do_something(twin, pick)


def _do_something(twin: Twin, pick: random.Random) -> None:
    """Do something that a user may do between two calls of the training loop, or nothing."""
    moves: list[Any] = [
        lambda net: net.state_dict(),
        lambda net: net.scale.norm(),
        lambda net: [parameter.grad for parameter in net.layers[1].parameters()],
        lambda net: nn.utils.clip_grad_norm_(net.parameters(), 0.1),
        lambda net: net.layers[2].weight.data.mul_(1.01),
        lambda net: net.zero_grad(),
    ]
    move = pick.choice([*moves, *[lambda net: None] * 6])
    for net in (twin.module, twin.plain):
        move(net)
