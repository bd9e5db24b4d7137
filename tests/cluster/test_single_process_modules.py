"""All ranks find the same modules for an optimizer, whatever else holds its parameters."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from tests.support.single_process import flat, look_backwards, run


class Headed(nn.Module):
    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.trunk(x))


def train_a_trunk_with_two_heads(rank: int) -> list[float]:
    torch.manual_seed(0)
    look_backwards(rank)
    trunk = nn.Linear(1, 1)
    left, right = Headed(trunk), Headed(trunk)
    optimizer = torch.optim.SGD([*trunk.parameters(), *left.head.parameters(), *right.head.parameters()], lr=0.1)
    for _ in range(2):
        (left(torch.full((1, 1), rank + 1.0)) + 3 * right(torch.full((1, 1), rank + 1.0))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*flat(left), *flat(right)]


def test_heads_of_the_same_shape_are_not_confused() -> None:
    first, second = run(2, train_a_trunk_with_two_heads)
    assert first == second
    assert first[2:4] != first[6:]


def train_one_of_two_twins(rank: int, chosen: int) -> tuple[list[float], list[float]]:
    look_backwards(rank)
    norm, linear = nn.BatchNorm1d(1), nn.Linear(1, 1)
    twins = nn.Sequential(norm, linear), nn.Sequential(norm, linear)
    optimizer = torch.optim.SGD(twins[0].parameters(), lr=0.1)
    for _ in range(3):
        twins[chosen](torch.tensor([[1.0], [3.0 + 10 * rank]])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        twins[chosen](torch.ones(2, 1))
    return flat(twins[0]), norm.running_mean.tolist()


@pytest.mark.parametrize("chosen", [0, 1])
def test_modules_that_share_submodules_are_both_followed(chosen: int) -> None:
    first, second = run(2, train_one_of_two_twins, chosen)
    assert first == second


def keep_a_dead_module_on_one_rank(rank: int) -> list[float]:
    gc.disable()
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    dead = nn.Sequential(model)
    dead.itself = [dead]
    del dead
    if rank == 1:
        gc.collect()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([[1.0], [rank + 2.0]])).sum().backward()
    optimizer.step()
    return flat(model)


def test_an_unused_module_does_not_count() -> None:
    first, second = run(2, keep_a_dead_module_on_one_rank)
    assert first == second
