"""A forked child, such as a data loader's worker, takes no part and holds nothing."""

from __future__ import annotations

import os
import signal
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import undertow
import undertow.torch
from tests.support.workers import on_workers, say, start_workers
from undertow.torch import DistributedDataParallel


@on_workers(2)
def test_data_loader_workers_do_not_disturb_training(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 1))
    data = TensorDataset(torch.arange(64.0).reshape(16, 4) + rank)
    for _ in range(2):
        for (batch,) in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork"):
            model.zero_grad()
            model(batch).sum().backward()
            assert torch.equal(model.module.weight.grad, (batch.sum(0, keepdim=True) + 2 - 4 * rank))
    undertow.torch.verify_replicas(model)


@on_workers(2)
def test_a_forked_child_is_not_initialised_and_can_say_so(rank: int) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        names = [thread.name for thread in threading.enumerate()]
        undertow.shutdown()  # harmless: nothing is its own
        os.write(write, f"{undertow.is_initialized()} {'undertow-engine' in names}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"False False"
    undertow.barrier()


def leave_a_child_behind(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    child = os.fork()
    if child == 0:
        signal.pause()
    say(child)
    while True:
        model(torch.ones(1, 4)).sum().backward()


def test_a_child_does_not_keep_the_connections_of_a_killed_worker_open() -> None:
    crew = start_workers(2, leave_a_child_behind)
    children = [crew.heard(rank) for rank in range(2)]
    try:
        crew.send_signal(1, signal.SIGKILL)
        outcome = crew.outcome(0)
        assert outcome.kind == "PeerLost", outcome
        assert "rank 1" in outcome.text
        assert "its connection" in outcome.text  # it closed at once, not after a silence
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        crew.end()
