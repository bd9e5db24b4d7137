"""Worker of the bench: trains as ordered, and reports when each step ended.

    python -m undertow.tools.lab.bench.worker

In: an assignment and orders on stdin, its rank in the environment.  Out: laps on stdout.
What libraries print goes to stderr, so that it does not mix with the messages.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec
import torch
from torch import nn

from undertow.decoding import Decoder, Format
from undertow.tools.lab.bench.messages import Assignment, Lap, Order, Ready
from undertow.tools.lab.real import REAL_NAMES
from undertow.tools.lab.real.tasks import Batch, make_task
from undertow.tools.lab.replay.device import Device, Occupancy, SharedOccupancy, place_device, sharpen_sleep
from undertow.tools.lab.replay.model import ReplayedModel, ReplayedSGD
from undertow.tools.lab.systems import System, find_system
from undertow.tools.zoo import find_model

_assignments: Decoder[Assignment] = Decoder(Assignment, "the assignment", format=Format.JSON)
_orders: Decoder[Order] = Decoder(Order, "an order", format=Format.JSON)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Model, optimizer, batches and loss of a worker, replayed or computed on the CPU."""

    batch: int
    compute_s: float | None  # of one step without communication; None if it has to be measured
    model: nn.Module
    optimizer: torch.optim.Optimizer
    make_batch: Callable[[int, int], Batch]
    loss: Callable[[nn.Module, Batch], torch.Tensor]


def make_workload(
    name: str,
    *,
    rank: int,
    scale: float,
    slowdown: float = 1.0,
    batch: int | None,
    occupancy: Occupancy | None = None,
) -> Workload:
    if name in REAL_NAMES:
        return _make_real(name, batch=batch)
    sharpen_sleep()
    published = find_model(name)
    device = Device(rank=rank, occupancy=occupancy)
    model = ReplayedModel(published, device=device, scale=scale, slowdown=slowdown, batch=batch)
    return Workload(
        batch=model.batch,
        compute_s=published.iteration_s * slowdown * model.batch / published.batch,
        model=model,
        optimizer=ReplayedSGD(model.parameters()),
        make_batch=model.make_batch,
        loss=lambda wrapped, batch: wrapped(*batch).sum(),
    )


def _make_real(name: str, *, batch: int | None) -> Workload:
    task = make_task(name, batch=batch)
    model = task.make_model()
    return Workload(
        batch=task.batch,
        compute_s=None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=task.learning_rate),
        make_batch=task.make_batch,
        loss=task.loss,
    )


def count_gradient_bytes(model: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in _trained(model))


def digest(model: nn.Module) -> int:
    """Return a checksum of the parameters and their last gradients."""
    value = 0
    for parameter in _trained(model):
        value = zlib.crc32(parameter.detach().numpy(), value)
        if parameter.grad is not None:
            value = zlib.crc32(parameter.grad.contiguous().numpy(), value)
    return value


def _trained(model: nn.Module) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class Trainer:
    """Training of one workload under one system."""

    def __init__(self, workload: Workload, system: System, *, rank: int, scale: float) -> None:
        self._workload, self._system, self._rank = workload, system, rank
        self._model, self._optimizer = system.wrap(workload.model, workload.optimizer, scale=scale)
        self._step = 0

    def run(self, steps: int) -> Lap:
        used_s = _cpu_s()
        sent = self._system.bytes_sent()
        ends_s = [self._train() for _ in range(steps)]
        self._system.flush()
        after = self._system.bytes_sent()
        return Lap(
            ends_s=ends_s,
            cpu_s=_cpu_s() - used_s,
            sent_bytes=None if sent is None or after is None else after - sent,
            digest=digest(self._workload.model),
        )

    def _train(self) -> float:
        """Train one step as any script does, and return when it ended."""
        batch = self._workload.make_batch(self._rank, self._step)
        self._optimizer.zero_grad()
        self._workload.loss(self._model, batch).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._step += 1
        return time.monotonic()


def main() -> None:
    orders, replies = sys.stdin.buffer, _take_stdout()
    assignment = _assignments.decode(orders.readline())
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    system = find_system(assignment.system)
    rank = int(os.environ["RANK"])
    workload = make_workload(
        assignment.model,
        rank=rank,
        scale=assignment.scale,
        slowdown=assignment.slowdown,
        batch=assignment.batch,
        occupancy=find_occupancy(assignment, rank),
    )
    system.join()
    trainer = Trainer(workload, system, rank=rank, scale=assignment.scale)
    size = count_gradient_bytes(workload.model)
    _send(replies, Ready(batch=workload.batch, gradient_bytes=size, compute_s=workload.compute_s))
    for line in orders:
        _send(replies, trainer.run(_orders.decode(line).steps))
    system.leave()


def find_occupancy(assignment: Assignment, host: int) -> Occupancy | None:
    """Return the device that jobs share on this host, if they do; where compute is real, pin the worker to one core."""
    if assignment.devices is None:
        return None
    if assignment.model in REAL_NAMES:
        os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[host]])
        return None
    return SharedOccupancy(place_device(assignment.devices, host))


def _take_stdout() -> BinaryIO:
    """Return stdout for the messages, and redirect what `print` and C libraries write to stderr."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _send(replies: BinaryIO, message: msgspec.Struct) -> None:
    replies.write(msgspec.json.encode(message) + b"\n")
    replies.flush()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    code = 0
    try:
        main()
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    # Skip the interpreter's shutdown: it would take torch another second, and torch's threads, which may wait for a
    # worker that has ended, sometimes abort the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
