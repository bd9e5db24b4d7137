"""Workers that train tell those who watch how it goes, whichever API trains them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import undertow
import undertow.torch
from tests.support.workers import run_workers
from undertow.observe.live.live_view import StatusReceiver
from undertow.observe.meter.status_report import Activity, StatusReport
from undertow.runtime import recording

STEPS = 12


@contextmanager
def watched() -> Iterator[tuple[dict[str, str], list[StatusReport]]]:
    """The environment for workers, and their reports, which are all there after the block."""
    heard: list[StatusReport] = []
    receiver = StatusReceiver(heard.append)
    receiver.start()
    try:
        yield {"UNDERTOW_LIVE": str(receiver.path)}, heard
    finally:
        receiver.close()


def last_of(heard: list[StatusReport], rank: int) -> StatusReport:
    return max((report for report in heard if report.rank == rank), key=lambda report: report.sequence)


def train(rank: int, api: str) -> None:
    model: Any = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if api == "parallelize":
        model, optimizer = undertow.torch.parallelize(model, optimizer)
    else:
        model = undertow.torch.DistributedDataParallel(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("api", ["ddp", "parallelize"])
def test_steps_layers_and_bytes_are_told(api: str) -> None:
    with watched() as (environment, heard):
        run_workers(2, train, api, environment=environment)
    for rank in range(2):
        told = last_of(heard, rank)
        assert (told.steps, told.state) == (STEPS, Activity.ENDED)
        assert told.layer in ("0", "2")  # as the model calls them
        assert told.layer_ms_per_step > 0
        assert told.bytes_out > 0
        assert told.bytes_in > 0
        assert told.steps_per_s > 0


def test_a_rank_on_another_host_is_heard_of_through_rank_0() -> None:
    with watched() as (environment, heard):
        # Only rank 0 has a launcher; the others' own is nowhere, as if it were on another host.
        run_workers(2, leave_for_elsewhere, environment=environment, init=False)
    told = [report for report in heard if report.rank == 1]
    assert told
    assert told[-1].state is Activity.ENDED


def leave_for_elsewhere(rank: int) -> None:
    if rank == 1:
        os.environ["UNDERTOW_LIVE"] = "/nowhere/reports"
        os.environ["LOCAL_RANK"] = "0"
    undertow.init()
    undertow.barrier()  # by now rank 0 listens
    if rank == 1:
        recording.announce_end()  # as when it leaves; but rank 0 might have left before
    undertow.barrier()  # on the same link: what was said before has come
