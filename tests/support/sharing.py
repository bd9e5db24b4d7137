"""Jobs that share a device, for tests: an arbiter that can be killed, an idle job, and jobs that train."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.support.arbiters import PATIENCE_S, Caller, eventually, hello_of, in_thread, status_at
from tests.support.workers import RETURNED, Crew, hear, say, start_workers
from undertow.crossover.messages import Ask, Give, Grant, JobStatus, NowShared
from undertow.torch import DistributedDataParallel, flush, parallelize
from undertow.torch.slots.device import name_device

LEASE_S = 600.0  # so long that it cannot hide a hang
CPU = name_device(torch.device("cpu"))


class Arbiter:
    """Arbiter in a process of its own, which can be killed."""

    def __init__(self, path: Path, lease_s: float = LEASE_S) -> None:
        self.path = path
        self._lease_s = lease_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "undertow.crossover.arbiter", self.path, str(self._lease_s)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        eventually(self._answers)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            return status_at(self.path).pid == self._process.pid
        except OSError:
            return False

    @property
    def environment(self) -> dict[str, str]:
        return {"UNDERTOW_SHARE": "1", "UNDERTOW_SHARE_SOCKET": str(self.path), "UNDERTOW_SHARE_NAME": "job"}

    def turns(self) -> list[int]:
        """Return the number of turns that each job on the device has had."""
        return [job.turns for job in self._jobs()]

    def states(self) -> dict[str, str]:
        """Return the state of each job by its name."""
        return {job.name: job.state for job in self._jobs()}

    def steps(self) -> dict[str, int]:
        return {job.name: job.steps for job in self._jobs()}

    def _jobs(self) -> list[JobStatus]:
        return [job for device in status_at(self.path).devices for job in device.jobs]


@contextlib.contextmanager
def running_arbiter(lease_s: float = LEASE_S) -> Iterator[Arbiter]:
    with tempfile.TemporaryDirectory(prefix="ut-") as folder:
        arbiter = Arbiter(Path(folder) / "s", lease_s)
        arbiter.start()
        try:
            yield arbiter
        finally:
            arbiter.kill()


class Other:
    """Idle job: because of it, other jobs have to request the turn."""

    def __init__(self, arbiter: Arbiter) -> None:
        self._caller = Caller(arbiter.path)
        self._caller.say(hello_of("other", device=CPU))
        self._granted = threading.Event()
        self._listening = in_thread(self._listen)

    def can_compute(self) -> bool:
        """Request the turn, give it back, and return whether it was granted."""
        self._granted.clear()
        self._caller.say(Ask())
        is_granted = self._granted.wait(PATIENCE_S)
        self._caller.say(Give())
        return is_granted

    def leave(self) -> None:
        self._caller.socket.shutdown(socket.SHUT_RDWR)
        self._listening.join()
        self._caller.socket.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while message := self._caller.hear():
                if isinstance(message, NowShared):
                    self._caller.say(Give())
                elif isinstance(message, Grant):
                    self._granted.set()


@contextlib.contextmanager
def other_job(arbiter: Arbiter) -> Iterator[Other]:
    made = Other(arbiter)
    yield made
    made.leave()


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    )


def make_optimizer(kind: str, net: nn.Module) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.Adam(net.parameters(), lr=0.01)
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


class Training:
    """Training of one model that accumulates gradients, and is evaluated in between."""

    def __init__(self, rank: int, api: str, kind: str) -> None:
        net = make_net()
        self._optimizer = make_optimizer(kind, net)
        self._generator = torch.Generator().manual_seed(rank)
        self._net = net
        if api == "overlapped":
            self.model: Any
            self.model, self._optimizer = parallelize(net, self._optimizer)
        else:
            self.model = DistributedDataParallel(net)
        self._steps = 0

    def step(self) -> None:
        self._optimizer.zero_grad()
        with self.model.no_sync():
            self._loss().backward()
        self._loss().backward()
        self._optimizer.step()
        self._steps += 1
        if self._steps % 3 == 0:
            self.model.eval()
            with torch.no_grad():
                self._loss()
            self.model.train()

    def digest(self) -> str:
        flush(self.model)
        values = [tensor.detach().numpy().tobytes() for tensor in self._net.state_dict().values()]
        return hashlib.sha256(b"".join(values)).hexdigest()

    def _loss(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(torch.randn(8, 16, generator=self._generator)).square().mean()
        return loss


def train_on_demand(rank: int, api: str) -> str:
    """Train as many steps as the test sends, repeatedly; report when the first ones are done."""
    training = Training(rank, api, "sgd")
    say("ready")
    while steps := hear():
        for step in range(steps):
            training.step()
            if step == 1:
                say("under way")
        say(training.digest())
    return training.digest()


def tell_all(crews: list[Crew], message: Any) -> None:
    for crew in crews:
        for rank in crew.pids:
            crew.tell(rank, message)


def hear_all(crews: list[Crew]) -> list[Any]:
    return [crew.heard(rank) for crew in crews for rank in crew.pids]


def values_of(crew: Crew) -> list[Any]:
    outcomes = crew.outcomes()
    assert all(outcome.kind == RETURNED for outcome in outcomes), "\n".join(map(str, outcomes))
    return [outcome.value for outcome in outcomes]


@functools.cache
def steps_alone(steps: int) -> list[str]:
    """Return each rank's digest after this many steps without sharing."""
    crew = start_workers(2, train_on_demand, "plain")
    hear_all([crew])
    tell_all([crew], steps)
    hear_all([crew])
    tell_all([crew], 0)
    hear_all([crew])
    return values_of(crew)
