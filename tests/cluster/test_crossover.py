"""Jobs that take turns come to the bits of a job that is alone, whoever of them, or of the arbiters, dies."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import undertow
from tests.unit.arbiters import PATIENCE_S, Caller, eventually, hello_of, in_thread, status_at
from tests.workers import DIED, RETURNED, Crew, hear, say, start_workers
from undertow.crossover.messages import Ask, Company, Give, Grant, JobStatus
from undertow.runtime import sharing
from undertow.torch import DistributedDataParallel, flush, parallelize
from undertow.torch.device import name_device

LEASE_S = 600.0  # what hangs must not be helped by it
STEPS = 6
CPU = name_device(torch.device("cpu"))


class Arbiter:
    """A process of its own, which can be killed."""

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
        return {"UNDERTOW_SHARE": "1", "UNDERTOW_SHARE_SOCKET": str(self.path)}

    def turns(self) -> list[int]:
        """How many each job on the device has had."""
        return [job.turns for job in self._jobs()]

    def states(self) -> dict[str, str]:
        """What each job does, by its name."""
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


@pytest.fixture
def arbiter() -> Iterator[Arbiter]:
    with running_arbiter() as running:
        yield running


class Other:
    """A job that does nothing: whoever else is there has to ask."""

    def __init__(self, arbiter: Arbiter) -> None:
        self._caller = Caller(arbiter.path)
        self._caller.say(hello_of("other", device=CPU))
        self._granted = threading.Event()
        self._listening = in_thread(self._listen)

    def can_compute(self) -> bool:
        """Whether it gets the turn, which it keeps for a moment only."""
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
                if isinstance(message, Company):
                    self._caller.say(Give())
                elif isinstance(message, Grant):
                    self._granted.set()


@pytest.fixture
def other(arbiter: Arbiter) -> Iterator[Other]:
    made = Other(arbiter)
    yield made
    made.leave()


# What the jobs do


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
    """One model; it accumulates gradients, and looks at itself in between."""

    def __init__(self, rank: int, door: str, kind: str) -> None:
        net = make_net()
        self._optimizer = make_optimizer(kind, net)
        self._generator = torch.Generator().manual_seed(rank)
        self._net = net
        if door == "overlapped":
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


RECIPES = [("plain", "sgd"), ("overlapped", "adam"), ("overlapped", "sgd"), ("plain", "adam")]


def follow(rank: int, recipes: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Train by all of these; nobody leaves before the test says so."""
    digests = {}
    for recipe in recipes:
        training = Training(rank, *recipe)
        if not digests:
            say("ready")
            hear()
        for _ in range(STEPS):
            training.step()
        digests[recipe] = training.digest()
    say("done")
    hear()
    return digests


def train_on_demand(rank: int, door: str) -> str:
    """So many steps as the test says, again and again; says when the first of them is made."""
    training = Training(rank, door, "sgd")
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


@pytest.fixture(scope="module")
def alone() -> list[dict[tuple[str, str], str]]:
    """What each recipe comes to without any sharing, rank by rank: buffers follow in the next step only."""
    crew = start_workers(2, follow, RECIPES)
    for _ in range(2):
        hear_all([crew])
        tell_all([crew], "go on")
    return values_of(crew)


@functools.cache
def steps_alone(steps: int) -> list[str]:
    """What so many steps come to without any sharing, rank by rank."""
    crew = start_workers(2, train_on_demand, "plain")
    hear_all([crew])
    tell_all([crew], steps)
    hear_all([crew])
    tell_all([crew], 0)
    hear_all([crew])
    return values_of(crew)


# Bits


def test_jobs_that_take_turns_come_to_the_same_bits(arbiter: Arbiter, alone: list[dict[tuple[str, str], str]]) -> None:
    orders = [RECIPES, RECIPES[::-1]]
    crews = [start_workers(2, follow, order, environment=arbiter.environment) for order in orders]
    hear_all(crews)
    tell_all(crews, "begin")
    hear_all(crews)
    assert all(turns >= len(RECIPES) * STEPS for turns in arbiter.turns())
    assert len(arbiter.turns()) == 2
    tell_all(crews, "end")
    for crew in crews:
        assert values_of(crew) == alone


def test_jobs_may_come_and_go(arbiter: Arbiter) -> None:
    expected = steps_alone(8)
    crews: list[Crew] = []
    for _ in range(3):
        crews.append(start_workers(2, train_on_demand, "overlapped", environment=arbiter.environment))
        hear_all(crews[-1:])
        tell_all(crews, 4)
        hear_all(crews)
        digests = hear_all(crews)
        if len(crews) > 1:
            assert digests[:2] == expected
            tell_all(crews[:1], 0)
            assert values_of(crews.pop(0)) == expected
    eventually(lambda: len(arbiter.turns()) == 1)
    tell_all(crews, 0)
    values_of(crews[0])
    eventually(lambda: not arbiter.turns())


# Who dies


def test_a_killed_worker_of_one_job_does_not_hurt_the_other(arbiter: Arbiter) -> None:
    expected = steps_alone(40)
    victim, other = [start_workers(2, train_on_demand, "plain", environment=arbiter.environment) for _ in range(2)]
    hear_all([victim, other])
    tell_all([victim], 10**6)
    tell_all([other], 40)
    hear_all([victim, other])  # under way
    victim.send_signal(1, signal.SIGKILL)
    assert hear_all([other]) == expected
    assert [outcome.kind for outcome in victim.outcomes()] == ["PeerLost", DIED]
    eventually(lambda: len(arbiter.turns()) == 1)
    tell_all([other], 0)
    assert values_of(other) == expected


def test_a_killed_arbiter_hurts_nobody_and_the_next_one_is_found(arbiter: Arbiter) -> None:
    expected = [2 * steps_alone(40), 2 * steps_alone(80)]
    crews = [start_workers(2, train_on_demand, "plain", environment=arbiter.environment) for _ in range(2)]
    hear_all(crews)
    tell_all(crews, 40)
    hear_all(crews)  # under way
    arbiter.kill()
    assert hear_all(crews) == expected[0]
    arbiter.start()
    eventually(lambda: len(arbiter.turns()) == 2)
    tell_all(crews, 40)
    hear_all(crews)  # under way
    assert hear_all(crews) == expected[1]
    assert all(turns >= 20 for turns in arbiter.turns())
    arbiter.kill()
    tell_all(crews, 0)
    for crew in crews:
        logs = [outcome.log for outcome in crew.outcomes()]
        assert [log.count("does not take turns with others: the arbiter of this host is gone") for log in logs] == [
            1,
            0,
        ]


def test_without_an_arbiter_a_job_runs_alone_and_says_so_once(tmp_path: Path) -> None:
    environment = {"UNDERTOW_SHARE": "1", "UNDERTOW_SHARE_SOCKET": str(tmp_path / "s")}
    expected = steps_alone(2)
    crew = start_workers(2, train_on_demand, "plain", environment=environment)
    hear_all([crew])
    tell_all([crew], 2)
    hear_all([crew])
    hear_all([crew])
    tell_all([crew], 0)
    outcomes = crew.outcomes()
    assert [outcome.value for outcome in outcomes] == expected
    assert [outcome.log.count("no arbiter is up on this host") for outcome in outcomes] == [1, 0]


class Stopping(nn.Linear):
    """Its first forward pass waits for the test."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "was_here"):
            self.was_here = True
            say("inside")
            hear()
        return super().forward(inputs)


def be_stopped(rank: int) -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Stopping(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 4) + rank).sum().backward()
        optimizer.step()
    return list(model.module.weight.flatten().tolist())


def test_a_stopped_holder_loses_its_turn_to_the_lease_is_named_and_goes_on_later() -> None:
    expected = steps_alone(4)
    with running_arbiter(lease_s=0.3) as arbiter:
        stopped = start_workers(1, be_stopped, environment=arbiter.environment)
        other = start_workers(2, train_on_demand, "plain", environment=arbiter.environment)
        assert hear_all([stopped]) == ["inside"]
        hear_all([other])
        stopped.send_signal(0, signal.SIGSTOP)
        try:
            tell_all([other], 4)
            hear_all([other])
            assert hear_all([other]) == expected
        finally:
            stopped.send_signal(0, signal.SIGCONT)
        assert any(
            f"(pid {stopped.pids[0]}) has computed on {CPU}" in words for words in status_at(arbiter.path).notices
        )
        tell_all([stopped], "go on")
        assert values_of(stopped) == run_alone_and_stop()
        tell_all([other], 0)
        outcomes = other.outcomes()
        assert [outcome.value for outcome in outcomes] == expected
        assert "or is stopped: the turn passes on" in "".join(outcome.log for outcome in outcomes)  # of one of them


def run_alone_and_stop() -> list[Any]:
    crew = start_workers(1, be_stopped)
    hear_all([crew])
    tell_all([crew], "go on")
    return values_of(crew)


# Scripts of many kinds, beside a job that has to be asked


class Pausing(nn.Linear):
    """Waits for the test in its forward pass and in its backward pass."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        pause("computes")
        outputs = super().forward(inputs)
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: pause("computes"))
        return outputs


class PausingSgd(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        pause("computes")
        return super().step(closure)


def pause(state: str) -> None:
    """Until the test has seen what the arbiter takes this job to do."""
    say(state)
    hear()


def pause_everywhere(rank: int) -> None:
    model = DistributedDataParallel(Pausing(4, 1))
    optimizer = PausingSgd(model.parameters(), lr=0.1)
    pause("waits for the network")
    with torch.no_grad():
        model(torch.ones(2, 4))
    pause("waits for the network")
    with model.no_sync():
        model(torch.ones(2, 4)).sum().backward()
    pause("waits for the network")
    model(torch.ones(2, 4)).sum().backward()
    pause("waits for the network")
    optimizer.step()
    pause("waits for the network")
    say("")


@pytest.mark.usefixtures("other")
def test_a_job_has_the_turn_when_it_computes_and_only_then(arbiter: Arbiter) -> None:
    crew = start_workers(1, pause_everywhere, environment=arbiter.environment)
    paused = 0
    while state := crew.heard(0):
        assert arbiter.states()["__main__"] == state
        paused += 1
        crew.tell(0, "go on")
    assert paused == 11
    values_of(crew)


def wait_behind_a_gate(rank: int) -> str:
    training = Training(rank, "overlapped", "sgd")
    training.step()
    say("ready")
    if rank == 1:
        hear()
    training.step()
    training.step()
    return training.digest()


@pytest.mark.usefixtures("other")
def test_a_job_that_waits_behind_a_gate_hands_the_turn_over(arbiter: Arbiter) -> None:
    crew = start_workers(2, wait_behind_a_gate, environment=arbiter.environment)
    hear_all([crew])
    eventually(lambda: arbiter.states()["__main__"] == "waits for the network" and arbiter.steps()["__main__"] == 2)
    crew.tell(1, "go on")
    assert values_of(crew) == steps_alone(3)


def fail_in(rank: int, place: str) -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    with pytest.raises(RuntimeError):
        fail(model, place)
    say("caught")  # the script looks into it, for hours
    hear()


def fail(model: nn.Module, place: str) -> None:
    outputs = model(torch.ones(2, 5 if place == "forward" else 4))
    model.module[0].weight.register_hook(lambda gradient: torch.ones(2, 4) @ gradient[:3])
    outputs.sum().backward()


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_pass_that_fails_does_not_keep_the_turn(arbiter: Arbiter, other: Other, place: str) -> None:
    crew = start_workers(2, fail_in, place, environment=arbiter.environment)
    hear_all([crew])
    assert other.can_compute()
    tell_all([crew], "go on")
    values_of(crew)


def load_data(rank: int) -> int:
    undertow.init(share=True)
    model = DistributedDataParallel(nn.Linear(4, 1))
    data = TensorDataset(torch.arange(64.0).reshape(16, 4) + rank)
    for (batch,) in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork"):
        model.zero_grad()
        model(batch).sum().backward()
        assert torch.equal(model.module.weight.grad, (batch.sum(0, keepdim=True) + 2 - 4 * rank))
    child = os.fork()
    if child == 0:
        model.eval()
        with torch.no_grad():
            model.module(torch.ones(1, 4))
            model(torch.ones(1, 4))
        signal.pause()
    say(child)
    hear()
    return child


def test_children_of_workers_neither_take_turns_nor_keep_a_dead_parent_in(arbiter: Arbiter, other: Other) -> None:
    environment = {"UNDERTOW_SHARE_SOCKET": str(arbiter.path)}
    crew = start_workers(2, load_data, init=False, environment=environment)
    children = hear_all([crew])
    try:
        assert max(arbiter.turns()) >= 4
        for rank in range(2):
            crew.send_signal(rank, signal.SIGKILL)
        eventually(lambda: len(arbiter.turns()) == 1)
        assert other.can_compute()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        crew.end()


def train_in_process_group(rank: int, meeting: str, size: int) -> str:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    training = Training(rank, "overlapped", "sgd")
    for _ in range(3):
        training.step()
    assert sharing.find_turn(CPU) is not None
    say("done")
    hear()
    digest = training.digest()
    dist.destroy_process_group()
    return digest


def test_a_process_group_or_a_single_worker_takes_turns_too(arbiter: Arbiter, other: Other, tmp_path: Path) -> None:
    bare = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "UNDERTOW_RENDEZVOUS"), "")
    digests = []
    for size in (2, 1):
        environment = {**bare, **arbiter.environment}
        meeting = str(tmp_path / str(size))
        crew = start_workers(size, train_in_process_group, meeting, size, init=False, environment=environment)
        hear_all([crew])
        assert max(arbiter.turns()) >= 3
        tell_all([crew], "end")
        digests += values_of(crew)
    assert digests[:2] == steps_alone(3)


class Checkpointed(nn.Sequential):
    """Computes its layers again in the backward pass."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, inputs, use_reentrant=False)  # type: ignore[no-any-return]


def make_two_learn_from_each_other(rank: int, door: str) -> str:
    """Two wrappers, whose passes meet; a gradient of a gradient; layers that are computed again."""
    torch.manual_seed(0)
    maker, judge = (
        Checkpointed(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)),
        Checkpointed(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)),
    )
    steps = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (maker, judge)]
    wrapped = [DistributedDataParallel(net) for net in (maker, judge)]
    if door == "overlapped":
        wrapped = [parallelize(model, step)[0] for model, step in zip(wrapped, steps, strict=True)]
    say("ready")
    hear()
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4):
        noise = torch.randn(8, 4, generator=generator)
        made = wrapped[0](noise).detach().requires_grad_()
        verdict = wrapped[1](made).mean()
        (slope,) = torch.autograd.grad(verdict, made, create_graph=True)
        steps[1].zero_grad()
        (verdict + slope.square().sum()).backward()
        steps[1].step()
        steps[0].zero_grad()
        wrapped[1](wrapped[0](noise)).mean().neg().backward()
        steps[0].step()
    say("done")
    hear()
    for model in wrapped:
        flush(model)
    values = [parameter.detach().numpy().tobytes() for net in (maker, judge) for parameter in net.parameters()]
    return hashlib.sha256(b"".join(values)).hexdigest()


def test_networks_that_learn_from_each_other_take_turns_with_another_job(arbiter: Arbiter) -> None:
    crews = [start_workers(2, make_two_learn_from_each_other, "plain")]
    for door in ("plain", "overlapped"):
        crews.append(start_workers(2, make_two_learn_from_each_other, door, environment=arbiter.environment))
    hear_all(crews)
    tell_all(crews, "begin")
    hear_all(crews)
    assert min(arbiter.turns()) >= 4
    tell_all(crews, "end")
    digests = [digest for crew in crews for digest in values_of(crew)]
    assert len(set(digests)) == 1


def compile_models(rank: int) -> list[list[float]]:
    warnings.simplefilter("default")  # torch's own, many
    weights = []
    for place in ("nowhere", "inside", "outside"):
        net = make_net()
        optimizer = make_optimizer("sgd", net)
        model: Any = DistributedDataParallel(torch.compile(net, backend="eager") if place == "inside" else net)
        model = torch.compile(model, backend="eager") if place == "outside" else model
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(8, 16)).square().mean().backward()
            optimizer.step()
        weights.append(net[0].weight.flatten().tolist())
    say("done")
    hear()
    return weights


def test_a_compiled_model_takes_turns_too(arbiter: Arbiter, other: Other) -> None:
    crew = start_workers(1, compile_models, environment=arbiter.environment)
    hear_all([crew])
    assert max(arbiter.turns()) >= 3 * 2
    assert other.can_compute()
    tell_all([crew], "end")
    ((plain, *compiled),) = values_of(crew)
    assert compiled == [plain] * 2


def start_again(rank: int) -> list[bool]:
    """A second life in the same process."""
    shares = []
    for _ in range(2):
        undertow.init()
        training = Training(rank, "plain", "sgd")
        training.step()
        shares.append(sharing.find_turn(CPU) is not None)
        undertow.shutdown()
        shares.append(sharing.find_turn(CPU) is not None)
    say("done")
    hear()
    with torch.no_grad():
        training.model.module(torch.ones(2, 16))  # what is left of it computes without asking
    return shares


def test_shutdown_leaves_and_a_second_init_comes_again(arbiter: Arbiter, other: Other) -> None:
    crew = start_workers(2, start_again, init=False, environment=arbiter.environment)
    hear_all([crew])
    assert len(arbiter.turns()) == 1
    tell_all([crew], "end")
    assert values_of(crew) == [[True, False, True, False]] * 2
