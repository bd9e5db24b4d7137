"""A small net and its training, over links so slow that gates stay closed for a while."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# Many slices, few of them in flight: gates stay closed for a while.
SLOW = {"UNDERTOW_SLICE": "1024", "UNDERTOW_CREDIT": "4096"}


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))


def sgd(net: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def train(model: Any, optimizer: torch.optim.Optimizer, rank: int, *, steps: int = 6) -> None:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 64, generator=generator)).square().mean().backward()
        optimizer.step()
