"""Models of any size: hundreds of tiny tensors, one huge one, none at all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import undertow
import undertow.torch
from tests.support.workers import on_workers, run_workers
from undertow.torch import DistributedDataParallel


class Weights(nn.Module):
    """Weights, each with a gradient of the input times the weight's number."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(shape) for shape in shapes])

    def forward(self, value: float) -> torch.Tensor:
        return sum(weight.sum() * (number * value) for number, weight in enumerate(self.weights))


@on_workers(3)
def test_500_tiny_tensors(rank: int) -> None:
    model = DistributedDataParallel(Weights(*[(1 + number % 7,) for number in range(500)]))
    for _ in range(3):
        model.zero_grad()
        model(float(rank)).backward()
        assert all((weight.grad == number).all() for number, weight in enumerate(model.module.weights))


def sum_100_megabytes(rank: int) -> None:
    model = DistributedDataParallel(Weights((1,), (25, 1_000_000)))
    model(2.0 * rank).backward()
    gradient = model.module.weights[1].grad
    assert gradient.min() == gradient.max() == 1


@pytest.mark.parametrize("over_tcp", [False, True])
def test_one_tensor_of_100_megabytes(over_tcp: bool) -> None:
    run_workers(2, sum_100_megabytes, over_tcp=over_tcp)


@on_workers(2, environment={"UNDERTOW_SLICE": "1024"})
def test_sizes_around_the_limits_of_a_slice(rank: int) -> None:
    edges = [1024, 256, 128]  # bytes at which tensors are cut, fused, or neither, in float32
    shapes = [(size // 4 + off,) for size in edges for off in (-1, 0, 1)] + [(1024,), (1,), (3, 5, 7), ()]
    model = DistributedDataParallel(Weights(*shapes))
    model(float(rank)).backward()
    assert all((weight.grad == number / 2).all() for number, weight in enumerate(model.module.weights))


@on_workers(2)
def test_a_parameter_without_elements(rank: int) -> None:
    model = DistributedDataParallel(Weights((0,), (2,), (3, 0)))
    model(float(rank)).backward()
    assert (model.module.weights[1].grad == 0.5).all()
    assert model.module.weights[2].grad.shape == (3, 0)
    undertow.torch.verify_replicas(model)


@on_workers(2)
def test_a_model_that_is_frozen_after_it_was_wrapped(rank: int) -> None:
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(3, 3))
    model.requires_grad_(False)
    undertow.torch.verify_replicas(model)
    inputs = torch.ones(1, 3, requires_grad=True)
    model(inputs).sum().backward()
    assert torch.equal(inputs.grad[0], model.module.weight.sum(0))


@on_workers(1)
def test_a_world_of_one(rank: int) -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 600), nn.BatchNorm1d(600), nn.Linear(600, 600)))
    alone = nn.Sequential(nn.Linear(3, 600), nn.BatchNorm1d(600), nn.Linear(600, 600))
    alone.load_state_dict(model.module.state_dict())
    inputs = torch.randn(5, 3)
    with model.join():
        for module in (model, alone):
            module(inputs).pow(2).sum().backward()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
