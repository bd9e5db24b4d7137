"""The digits example, small: one model, one order of batches, on one process or on many."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sklearn.datasets
import torch
from torch import nn

STEPS = 50
BATCH = 48  # of all workers together: divides by 2, 3 and 4


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def batches(steps: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The joined batches, the same for everyone."""
    data, target = sklearn.datasets.load_digits(return_X_y=True)
    inputs, labels = torch.tensor(data / 16, dtype=torch.float32), torch.tensor(target)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))
    for step in range(steps):
        chosen = order[torch.arange(step * BATCH, (step + 1) * BATCH) % len(order)]
        yield inputs[chosen], labels[chosen]


def train(
    model: nn.Module,
    rank: int = 0,
    size: int = 1,
    make_optimizer: Callable[..., torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    steps: int = STEPS,
) -> list[torch.Tensor]:
    """The user's own loop, on this worker's share of each batch; returns the parameters."""
    optimizer = make_optimizer(model.parameters())
    for inputs, labels in batches(steps):
        share = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[share]), labels[share]).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def distance(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest relative difference between two lists of tensors, tensor by tensor."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs, strict=True))
