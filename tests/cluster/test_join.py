"""Uneven inputs: ranks that run out let the others continue, and all end with the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join

import undertow
import undertow.torch
from tests.support.workers import on_workers, run_workers
from undertow.torch import DistributedDataParallel

LARGE = 300_000


class Scale(nn.Module):
    """A module whose gradient is its input; its size decides whether it is fused."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, value: float) -> torch.Tensor:
        return (self.weight * value).sum()


def train(model: nn.Module, values: list[float]) -> list[float]:
    """Return the gradient of each step; the weight shows the optimizer's steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    seen = []
    for value in values:
        optimizer.zero_grad()
        model(value).backward()
        optimizer.step()
        seen.append(float(next(model.parameters()).grad[0]))
    return seen


@on_workers(3)
def test_ranks_that_run_out_count_as_zero(rank: int) -> None:
    for size in (3, LARGE):
        model = DistributedDataParallel(Scale(size))
        with model.join():
            seen = train(model, [3.0] * (1 + rank))
        assert seen == [3.0, 2.0, 1.0][: rank + 1]
        assert (model.module.weight == -6).all()


@on_workers(3)
def test_any_rank_may_run_out_first(rank: int) -> None:
    for first in range(3):
        model = DistributedDataParallel(Scale())
        with model.join():
            seen = train(model, [3.0] * (1 if rank == first else 3))
        assert seen == [3.0, 2.0, 2.0][: 1 if rank == first else 3]
        assert (model.module.weight == -7).all()


@on_workers(3)
def test_the_mean_can_be_that_of_the_remaining_ranks(rank: int) -> None:
    model = DistributedDataParallel(Scale())
    with model.join(divide_by_initial_world_size=False):
        seen = train(model, [6.0 * (other + 1) for other in range(1 + rank)])
    assert seen == [6.0, 12.0, 18.0][: rank + 1]


@on_workers(3)
def test_joins_may_be_repeated_and_ordinary_training_may_follow(rank: int) -> None:
    model = DistributedDataParallel(Scale())
    for turn in range(3):
        with model.join(divide_by_initial_world_size=turn == 1):
            train(model, [3.0] * (1 + (rank + turn) % 3))
        assert train(model, [float(rank)] * 2) == [1.0, 1.0]
        undertow.torch.verify_replicas(model)


@on_workers(2)
def test_a_rank_may_have_no_input_at_all(rank: int) -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    with model.join():
        for _ in range(2 * rank):
            model(torch.ones(4, 2) * torch.arange(4)[:, None]).sum().backward()
    undertow.torch.verify_replicas(model)
    assert int(model.module[1].num_batches_tracked) == 2


@on_workers(2)
def test_even_inputs_in_a_join_are_ordinary_training(rank: int) -> None:
    model = DistributedDataParallel(Scale())
    with model.join(throw_on_early_termination=True):
        assert train(model, [float(rank)] * 3) == [0.5] * 3
    with model.join(enable=False):
        assert train(model, [float(rank)] * 3) == [0.5] * 3


@on_workers(3)
def test_early_termination_raises_on_all_ranks(rank: int) -> None:
    model = DistributedDataParallel(Scale())
    values = [3.0] * (2 if rank == 1 else 5)
    with pytest.raises(RuntimeError, match="run out of input"), model.join(throw_on_early_termination=True):
        train(model, values)
    assert (model.module.weight == -6).all()  # two steps; the third backward raised
    assert train(model, [float(rank)]) == [1.0]  # all may continue together
    undertow.torch.verify_replicas(model)


@on_workers(2)
def test_accumulation_works_inside_a_join(rank: int) -> None:
    model = DistributedDataParallel(Scale())
    with model.join():
        for _ in range(1 + rank):
            model.zero_grad()
            with model.no_sync():
                model(2.0).backward()
            model(4.0).backward()
    assert float(model.module.weight.grad[0]) == (3.0 if rank else 6.0)


@on_workers(2)
def test_buffers_come_from_the_lowest_remaining_rank_and_end_equal(rank: int) -> None:
    for options in ({}, {"broadcast_buffers": False}):
        model = DistributedDataParallel(nn.BatchNorm1d(2), **options)
        with model.join():
            for _ in range(1 + 2 * rank):
                model(torch.randn(4, 2)).sum().backward()
        # Without broadcast, each rank keeps its own, as in torch.
        counted = int(model.module.num_batches_tracked)
        assert counted == (3 if not options else 1 + 2 * rank)


class Counter(Scale):
    """A module whose forward changes its buffer differently on every rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, value: float) -> torch.Tensor:
        self.at_entry = int(self.count)
        self.count += 10**self.rank
        return super().forward(value)


@on_workers(3)
def test_after_rank_0_has_run_out_the_next_rank_provides_the_buffers(rank: int) -> None:
    model = DistributedDataParallel(Counter(rank))
    seen = []
    with model.join():
        for _ in range(1 + 2 * (rank > 0)):
            model(1.0).backward()
            seen.append(model.module.at_entry)
    # Rank 1's first count is its own 10; later counts start from the last one of all ranks.
    assert seen == [0, 10, 20][: 1 + 2 * (rank > 0)]


@on_workers(2)
def test_an_exception_in_a_join_is_passed_on(rank: int) -> None:
    model = DistributedDataParallel(Scale())
    with pytest.raises(KeyError), model.join():
        raise KeyError
    assert train(model, [float(rank)]) == [0.5]


def use_torch_join(rank: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=3)
    first, second = DistributedDataParallel(Scale()), DistributedDataParallel(Scale())
    for _ in range(2):
        with Join([first, second]):
            for _ in range(1 + rank):
                train(first, [3.0])
                train(second, [6.0])
    assert (first.module.weight == -12).all()
    assert (second.module.weight == -24).all()
    # Nothing of the join remains outside it.
    assert train(first, [float(rank)]) == [1.0]
    undertow.torch.verify_replicas(second)
    dist.destroy_process_group()


def test_the_generic_join_of_torch_works_over_several_models(tmp_path: Path) -> None:
    run_workers(3, use_torch_join, str(tmp_path / "meeting"))


def throw_in_torch_join(rank: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    model = DistributedDataParallel(Scale())
    with pytest.raises(RuntimeError, match="exhausted"), Join([model], throw_on_early_termination=True):
        train(model, [2.0] * (1 + 3 * rank))
    assert (model.module.weight == -2).all()
    undertow.torch.verify_replicas(model)
    dist.destroy_process_group()


def test_the_generic_join_raises_on_all_ranks(tmp_path: Path) -> None:
    run_workers(2, throw_in_torch_join, str(tmp_path / "meeting"))
