"""Each process has one engine thread, which sleeps when nothing happens."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import undertow
import undertow.torch
from tests.support.workers import on_workers, run_workers
from undertow import kvstore
from undertow.torch import DistributedDataParallel


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("undertow")]


def use_many_keys_and_groups(rank: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    kv = kvstore.create()
    for key in range(50):
        kv.init(key, np.zeros(3))
    groups = [None, dist.group.WORLD, dist.new_group([0, 1])]
    models = [DistributedDataParallel(nn.Linear(4, 4), process_group=group) for group in groups]
    for model in models:
        model(torch.ones(1, 4)).sum().backward()
    assert own_threads() == ["undertow-engine"]
    undertow.shutdown()
    assert own_threads() == []
    dist.destroy_process_group()


def test_there_is_one_engine_thread_however_many_keys_and_groups(tmp_path: Path) -> None:
    run_workers(2, use_many_keys_and_groups, str(tmp_path / "meeting"))


@on_workers(3)
def test_an_idle_worker_uses_no_processor_time(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    model(torch.ones(1, 4)).sum().backward()
    undertow.barrier()
    before = time.process_time()
    threading.Event().wait(1.5)  # only heartbeats happen
    used = time.process_time() - before
    undertow.barrier()
    assert used < 0.05 * 1.5


@on_workers(2)
def test_a_worker_that_waits_for_another_uses_no_processor_time(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    undertow.barrier()
    if rank == 1:
        threading.Event().wait(1.0)
    before = time.process_time()
    model(torch.ones(1, 4)).sum().backward()
    assert time.process_time() - before < 0.1


@on_workers(2)
def test_calls_from_another_thread_work(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4, bias=False))
    failures: list[BaseException] = []

    def train() -> None:
        try:
            for _ in range(3):
                model.zero_grad()
                model(torch.full((1, 4), float(rank))).sum().backward()
                assert (model.module.weight.grad == 0.5).all()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert not failures
