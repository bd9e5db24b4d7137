"""A worker of the bench: trains when it is told to, and says how long each step took.

    python -m undertow.lab.bench.worker

In: an assignment and orders on stdin, its place in the environment.  Out: laps on stdout.
Whatever libraries print goes to stderr, so that it does not get between the messages.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import BinaryIO

import msgspec
import torch

from undertow.core.decoding import Decoder, Format
from undertow.lab.bench.messages import Assignment, Lap, Order, Ready
from undertow.lab.bench.workload import Workload, count_gradient_bytes, digest, make_workload
from undertow.lab.real.names import REAL_NAMES
from undertow.lab.replay.device import Occupancy
from undertow.lab.sharing.occupancy import SharedOccupancy, place_device
from undertow.lab.systems import System, find_system

_assignments: Decoder[Assignment] = Decoder(Assignment, "the assignment", format=Format.JSON)
_orders: Decoder[Order] = Decoder(Order, "an order", format=Format.JSON)


class Trainer:
    """One workload under one system."""

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
        """One step as any script has it; returns when it ended."""
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
    _tell(replies, Ready(batch=workload.batch, gradient_bytes=size, compute_s=workload.compute_s))
    for line in orders:
        _tell(replies, trainer.run(_orders.decode(line).steps))
    system.leave()


def find_occupancy(assignment: Assignment, host: int) -> Occupancy | None:
    """The device that this host's jobs share, if they do; where compute is real that is one of the cores."""
    if assignment.devices is None:
        return None
    if assignment.model in REAL_NAMES:
        os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[host]])
        return None
    return SharedOccupancy(place_device(assignment.devices, host))


def _take_stdout() -> BinaryIO:
    """The stream for messages; from now on print and C libraries write to stderr."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _tell(replies: BinaryIO, message: msgspec.Struct) -> None:
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
    # All is said.  To take torch apart in order would cost every worker another second, and torch's threads, which may
    # wait for a worker that is gone, now and then abort the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
