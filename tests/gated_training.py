"""A model that is trained behind gates in a way that a seed decides, beside one that is not.

Used wherever a test has its own idea of when results come.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.unit.slow_group import Twin
from undertow.torch import flush

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
}


class Net(nn.Module):
    """Uses its layers in an order of the caller's choice, some not at all, one twice; a weight is tied."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(4))
        self.layers[3].weight = self.layers[0].weight

    def forward(self, inputs: torch.Tensor, order: list[int]) -> torch.Tensor:
        for index in order:
            inputs = torch.tanh(self.layers[index](inputs)) * self.scale
        return inputs


def do_something(twin: Twin, pick: random.Random) -> None:
    """Whatever a user may do between two calls of the loop."""
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


def check_training(pick: random.Random, optimizer: str, let_some_come: Callable[[], None]) -> None:
    """A few steps with whatever a user may do between them; the same bits as without gates."""
    twin = Twin(Net(), OPTIMIZERS[optimizer])
    inputs = torch.ones(2, 4)
    for _ in range(pick.randint(1, 5)):
        order = pick.choices(range(4), k=pick.randint(1, 5))
        if pick.random() < 0.8:
            twin.optimizer.zero_grad()
            twin.plain_optimizer.zero_grad()
        let_some_come()
        twin.backward(inputs, order)
        let_some_come()
        do_something(twin, pick)
        twin.step()
        do_something(twin, pick)
    flush(twin.model)
    for (key, ours), theirs in zip(twin.module.named_parameters(), twin.plain.parameters(), strict=True):
        assert torch.equal(ours, theirs), key
        assert (ours.grad is None) == (theirs.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)
