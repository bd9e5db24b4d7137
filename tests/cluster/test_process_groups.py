"""Without undertow.init(), the wrapper joins through the store of torch's process group."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import undertow
import undertow.torch
from tests.support.ports import free_port
from tests.support.workers import run_workers
from undertow.torch import DistributedDataParallel

# Only the test itself says where the rendezvous is.
NO_LAUNCHER = {"UNDERTOW_RENDEZVOUS": "", "UNDERTOW_TOKEN": ""}
NOTHING = {**NO_LAUNCHER, "RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, value: float) -> torch.Tensor:
        return (self.weight * value).sum()


def mean_of(value: float, **options: object) -> float:
    """Return the gradient after one backward: the mean over the participants."""
    model = DistributedDataParallel(Scale(), **options)
    model(value).backward()
    return float(model.module.weight.grad[0])


def train_in_group(rank: int, init_method: str, size: int) -> tuple[float, bool]:
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=size)
    means = mean_of(rank), mean_of(10 * rank)  # a second one finds the same connections
    assert means[1] == 10 * means[0]
    assert undertow.torch.verify_replicas(nn.Linear(1, 1).requires_grad_(False).apply(zero)) != ""
    dist.destroy_process_group()
    return means[0], undertow.is_initialized()


def zero(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.zeros_(parameter)


@pytest.mark.parametrize("scheme", ["tcp", "file"])
def test_a_process_group_is_enough(scheme: str, tmp_path: Path) -> None:
    place = f"tcp://127.0.0.1:{free_port()}" if scheme == "tcp" else f"file://{tmp_path / 'meeting'}"
    assert run_workers(3, train_in_group, place, 3, init=False, environment=NOTHING) == [(1.0, False)] * 3


def train_with_env(rank: int) -> float:
    dist.init_process_group("gloo")
    mean = mean_of(rank)
    dist.destroy_process_group()
    return mean


def test_a_process_group_from_the_environment_is_enough() -> None:
    environment = {**NO_LAUNCHER, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    assert run_workers(2, train_with_env, init=False, environment=environment) == [0.5, 0.5]


def init_after_group(rank: int, meeting: str) -> tuple[int, int, float]:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    undertow.init()
    return undertow.rank(), undertow.world_size(), mean_of(rank)


def test_init_takes_rank_and_size_from_a_process_group_that_is_there(tmp_path: Path) -> None:
    results = run_workers(2, init_after_group, str(tmp_path / "meeting"), init=False, environment=NOTHING)
    assert results == [(0, 2, 0.5), (1, 2, 0.5)]


def use_subgroups(rank: int, meeting: str) -> list[float]:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=4)
    even, pair = dist.new_group([0, 2]), dist.new_group([1, 2, 3])
    means = []
    if rank in (0, 2):
        means.append(mean_of(rank, process_group=even))
    if rank in (1, 2, 3):
        means.append(mean_of(10 * rank, process_group=pair))
        with pytest.raises(undertow.ConfigError, match="cannot be copied"):
            torch.save(DistributedDataParallel(Scale(), process_group=pair), os.devnull)
    if rank == 1:
        with pytest.raises(undertow.ConfigError, match="not in the given process group"):
            mean_of(0, process_group=even)
    means.append(mean_of(rank))
    dist.barrier()
    return means


@pytest.mark.parametrize("init", [False, True])
def test_some_of_the_ranks_can_train_alone(init: bool, tmp_path: Path) -> None:
    environment = {} if init else NO_LAUNCHER
    results = run_workers(4, use_subgroups, str(tmp_path / "meeting"), init=init, environment=environment)
    assert results == [[1.0, 1.5], [20.0, 1.5], [1.0, 20.0, 1.5], [20.0, 1.5]]


def use_two_groups_at_once(rank: int, meeting: str) -> tuple[float, float]:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=3)
    some = dist.new_group([0, 1])
    whole = DistributedDataParallel(Scale())
    if rank == 2:
        whole(6.0).backward()
        return float(whole.module.weight.grad[0]), 0.0
    part = DistributedDataParallel(Scale(), process_group=some)
    (whole(6.0 * rank) + part(float(rank))).backward()
    return float(whole.module.weight.grad[0]), float(part.module.weight.grad[0])


def test_one_backward_can_involve_two_groups(tmp_path: Path) -> None:
    results = run_workers(3, use_two_groups_at_once, str(tmp_path / "meeting"), init=False, environment=NOTHING)
    assert results == [(4.0, 0.5), (4.0, 0.5), (4.0, 0.0)]


def differ_in_a_group(rank: int, meeting: str) -> str:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=4)
    some = dist.new_group([1, 2, 3])
    told = ""
    if rank in (1, 2, 3):
        model = nn.Linear(1, 1).apply(zero)
        if rank == 2:
            nn.init.ones_(model.weight)
        with pytest.raises(undertow.DriftError) as drift:
            undertow.torch.verify_replicas(model, some)
        with pytest.raises(undertow.MismatchError) as mismatch:
            DistributedDataParallel(nn.Linear(1, 2 if rank == 3 else 1), process_group=some)
        told = f"{drift.value} {drift.value.ranks} {mismatch.value} {mismatch.value.ranks}"
    dist.barrier()
    return told


def test_ranks_of_a_subset_are_named_as_in_the_whole_job(tmp_path: Path) -> None:
    outside, *told = run_workers(4, differ_in_a_group, str(tmp_path / "meeting"), init=False, environment=NOTHING)
    assert outside == ""
    assert len(set(told)) == 1
    assert told[0].startswith("replicas differ: 'weight' on rank 2 is not the same as on the other ranks (2,) ")
    assert "ranks 1 and 3 hold different tensors" in told[0]
    assert told[0].endswith("(1, 3)")


def train_at_master(rank: int) -> tuple[int, float]:
    return undertow.world_size(), mean_of(rank)


def test_torchs_variables_are_enough_without_any_launcher() -> None:
    environment = {**NO_LAUNCHER, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    assert run_workers(3, train_at_master, environment=environment) == [(3, 1.0)] * 3


def fail_to_init(rank: int) -> str:
    with pytest.raises(undertow.ConfigError) as caught:
        undertow.init()
    return str(caught.value)


def test_without_a_rendezvous_the_error_says_what_to_set() -> None:
    texts = run_workers(2, fail_to_init, init=False, environment=NO_LAUNCHER)
    assert all("MASTER_ADDR and MASTER_PORT" in text for text in texts)


def join_a_new_group(rank: int, meeting: str) -> list[float]:
    means = []
    for turn in range(2):
        dist.init_process_group("gloo", init_method=f"file://{meeting}-{turn}", rank=rank, world_size=2)
        means.append(mean_of(rank + turn))
        dist.destroy_process_group()
    return means


def test_a_process_group_can_be_destroyed_and_recreated(tmp_path: Path) -> None:
    results = run_workers(2, join_a_new_group, str(tmp_path / "meeting"), init=False, environment=NOTHING)
    assert results == [[0.5, 1.5]] * 2


def train_in_a_mesh(rank: int, init_method: str) -> tuple[float, bool]:
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    mean = mean_of(rank, process_group=mesh.get_group("dp"))
    model = DistributedDataParallel(nn.Linear(3, 1))
    assert model.process_group is dist.group.WORLD  # as in torch, whose functions crash on None
    assert copy.deepcopy(model)(torch.ones(1, 3)).shape == (1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(torch.full((1, 3), float(rank)))
    outputs.sum().backward()
    is_mean = model.module.weight.grad.tolist() == [[0.5, 0.5, 0.5]] and outputs.dtype is torch.bfloat16
    dist.destroy_process_group()
    copy.deepcopy(model)  # still possible
    return mean, is_mean


def test_the_advice_about_meshes_and_mixed_precision_works(tmp_path: Path) -> None:
    place = f"file://{tmp_path / 'meeting'}"
    results = run_workers(2, train_in_a_mesh, place, init=False, environment=NOTHING)
    assert results == [(0.5, True)] * 2
