"""N workers give the results of one process and of torch's own class, with the same bits every time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import undertow
import undertow.torch
from tests.support.digits import distance, make_model, train
from tests.support.workers import run_workers

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
}


def train_with_undertow(rank: int, size: int) -> tuple[list[torch.Tensor], str]:
    # Each rank starts with different weights: rank 0's count.
    model = undertow.torch.DistributedDataParallel(make_model(seed=rank))
    return train(model, rank, size), undertow.torch.verify_replicas(model)


@pytest.mark.parametrize("over_tcp", [False, True])
@pytest.mark.parametrize("size", [3, 4])
def test_workers_equal_one_process_with_the_joint_batch(size: int, over_tcp: bool) -> None:
    alone = train(make_model())
    for parameters, _ in run_workers(size, train_with_undertow, size, over_tcp=over_tcp):
        assert distance(parameters, alone) < 1e-6


def test_all_ranks_and_two_runs_have_the_same_bits() -> None:
    digests = [
        digest
        for over_tcp in (False, False, True)
        for _, digest in run_workers(3, train_with_undertow, 3, over_tcp=over_tcp)
    ]
    assert len(set(digests)) == 1


def train_beside_torch(rank: int, size: int, name: str, meeting: str) -> float:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    ours = undertow.torch.DistributedDataParallel(make_model())
    theirs = torch.nn.parallel.DistributedDataParallel(make_model())
    parameters = [train(model, rank, size, OPTIMIZERS[name]) for model in (ours, theirs)]
    undertow.barrier()
    # Otherwise the last wrapper deletes the process group, which may wait for a Gloo thread that waits for
    # Python's lock.
    del ours, theirs
    dist.destroy_process_group()
    return distance(*parameters)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_workers_equal_torch_ddp(name: str, tmp_path: Path) -> None:
    # Adam divides by the root of tiny squares, which amplifies the last bit.
    limit = 1e-6 if name == "sgd" else 1e-5
    assert max(run_workers(3, train_beside_torch, 3, name, str(tmp_path / "meeting"))) < limit


def drift(rank: int) -> str:
    model = make_model()
    with torch.no_grad():
        model[2].bias[0] += rank == 1
    return undertow.torch.verify_replicas(model)


def test_differing_replicas_are_detected() -> None:
    from tests.support.workers import outcomes_of

    for outcome in outcomes_of(3, drift):
        assert outcome.kind == "DriftError"
        assert "'2.bias' on rank 1" in outcome.text
