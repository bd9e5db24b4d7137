"""A replayed model under torch's wrapper and under ours: neither can tell it from a real one."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.parallel.distributed
from torch import nn

from tests.support.workers import on_workers
from undertow.tools.lab.bench.worker import digest
from undertow.tools.lab.replay.model import ReplayedModel, ReplayedSGD
from undertow.tools.lab.systems import find_system
from undertow.tools.lab.systems.others import scaled_buckets
from undertow.tools.zoo import find_model

SCALE = 2000.0
STEPS = 3
MIB = 1 << 20


FIRST_VALUE = 1e-4


class Stopwatch:
    gradient = FIRST_VALUE

    def __init__(self) -> None:
        self.total_s = 0.0

    def compute(self, seconds: float) -> None:
        self.total_s += seconds


def make(name: str = "sockeye", *, scale: float = SCALE) -> ReplayedModel:
    return ReplayedModel(find_model(name), device=Stopwatch(), scale=scale)  # type: ignore[arg-type]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: ReplayedModel, *, rank: int = 0) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(*batches.make_batch(rank, step)).sum().backward()
        optimizer.step()


def start_gloo() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def wrap_with_ddp(model: ReplayedModel, *, scale: float) -> nn.Module:
    return find_system("ddp").wrap(model, ReplayedSGD(model.parameters()), scale=scale)[0]


@on_workers(1)
def test_every_system_leaves_the_same_parameters(rank: int) -> None:
    start_gloo()
    models = {name: make() for name in ("local", "ddp", "undertow", "undertow-no-slicing")}
    for name, model in models.items():
        train(*find_system(name).wrap(model, ReplayedSGD(model.parameters()), scale=SCALE), model)
        assert abs(model.device.total_s - STEPS * find_model("sockeye").iteration_s) < 1e-9
    assert len({digest(model) for model in models.values()}) == 1
    assert digest(make()) != digest(models["local"])
    dist.destroy_process_group()


@on_workers(2)
def test_undertow_sends_from_the_lent_memory_and_receives_into_it(rank: int) -> None:
    """A copy of every gradient would be CPU time that a real model does not take."""
    model = make()
    wrapped, optimizer = find_system("undertow").wrap(model, ReplayedSGD(model.parameters()), scale=SCALE)
    places = set()
    for step in range(STEPS):
        optimizer.zero_grad()
        wrapped(*model.make_batch(rank, step)).sum().backward()
        places.add(tuple(parameter.grad.data_ptr() for parameter in model.parameters()))
        for parameter in model.parameters():
            # The mean of what both ranks left there after the step before.
            assert torch.allclose(parameter.grad, torch.full_like(parameter, FIRST_VALUE + step))
            parameter.grad.fill_(FIRST_VALUE + step + (2 if rank else 0))
    assert len(places) == 1


@on_workers(2)
def test_ranks_with_different_tokens_stay_alike(rank: int) -> None:
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(rank)  # rank 0's values are everybody's from the start
    train(*find_system("undertow").wrap(model, ReplayedSGD(model.parameters()), scale=SCALE), model, rank=rank)
    expected = -0.01 * STEPS * FIRST_VALUE
    for parameter in model.parameters():
        assert torch.allclose(parameter.flatten()[:1], torch.tensor([expected]))


@on_workers(1, init=False)
def test_buckets_follow_the_scale(rank: int) -> None:
    start_gloo()
    for scale in (1.0, 10.0, 1000.0):
        wrapped = wrap_with_ddp(make("resnet50", scale=100.0), scale=scale)
        assert wrapped._get_ddp_logging_data()["bucket_cap_bytes"] == int(25 / scale * MIB)
    dist.destroy_process_group()


@on_workers(1, init=False)
def test_there_are_as_many_buckets_as_without_scaling(rank: int) -> None:
    """Also after the first step, when torch arranges them by the order in which gradients came."""
    start_gloo()
    counts = set()
    for scale in (1.0, 10.0):
        model = make("resnet50", scale=scale)
        wrapped = wrap_with_ddp(model, scale=scale)
        train(wrapped, ReplayedSGD(model.parameters()), model)
        sizes = [int(size) for size in wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")]
        assert sum(sizes) == 4 * sum(parameter.numel() for parameter in model.parameters())
        assert sizes[0] < 10 * MIB / scale  # the smaller first one is there
        counts.add(len(sizes))
    assert len(counts) == 1
    assert counts.pop() > 3
    dist.destroy_process_group()


def defaults() -> tuple[object, object]:
    return dist._DEFAULT_FIRST_BUCKET_BYTES, torch.nn.parallel.distributed._DEFAULT_BUCKET_CAP_MB


def test_torchs_own_sizes_are_back_afterwards() -> None:
    before = defaults()
    with scaled_buckets(10.0):
        assert defaults() == (round(MIB / 10), 2.5)
    assert defaults() == before == (MIB, 25)


def test_torchs_own_sizes_are_back_after_an_error_too() -> None:
    before = defaults()
    with pytest.raises(ZeroDivisionError), scaled_buckets(1e12):
        assert 1 / (defaults()[0] - 1)
    assert defaults() == before
