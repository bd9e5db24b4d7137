"""Scripts of many kinds take turns with another job, which has to be asked."""

from __future__ import annotations

import hashlib
import os
import signal
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
from tests.support.arbiters import eventually
from tests.support.sharing import (
    CPU,
    Arbiter,
    Other,
    Training,
    hear_all,
    make_net,
    make_optimizer,
    other_job,
    running_arbiter,
    steps_alone,
    tell_all,
    values_of,
)
from tests.support.workers import hear, say, start_workers
from undertow.runtime import sharing
from undertow.torch import DistributedDataParallel, flush, parallelize


@pytest.fixture
def arbiter() -> Iterator[Arbiter]:
    with running_arbiter() as running:
        yield running


@pytest.fixture
def other(arbiter: Arbiter) -> Iterator[Other]:
    with other_job(arbiter) as made:
        yield made


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
        assert arbiter.states()["job"] == state
        paused += 1
        crew.tell(0, "go on")
    assert paused == 11
    values_of(crew)


def wait_behind_a_gate(rank: int) -> list[float]:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))  # without buffers: those are waited for before the forward
    model, optimizer = parallelize(net, torch.optim.SGD(net.parameters(), 0.1))
    for number in range(3):
        if number == 1:
            say("ready")
            if rank == 1:
                hear()
        if number == 2 and rank == 0:
            tell_once(net, "in forward")
        optimizer.zero_grad()
        model(torch.full((2, 4), 1.0 + rank)).square().mean().backward()
        optimizer.step()
    flush(model)
    values: list[float] = torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).tolist()
    return values


def tell_once(module: nn.Module, word: str) -> None:
    """When it begins its next forward pass, before it looks at any parameter."""

    def tell(*_: object) -> None:
        hook.remove()
        say(word)

    hook = module.register_forward_pre_hook(tell)


@pytest.mark.usefixtures("other")
def test_a_job_that_waits_behind_a_gate_hands_the_turn_over(arbiter: Arbiter) -> None:
    crew = start_workers(2, wait_behind_a_gate, environment=arbiter.environment)
    hear_all([crew])
    assert crew.heard(0) == "in forward"  # where it has the turn, and cannot go on without the other rank
    eventually(lambda: arbiter.states()["job"] == "waits for the network")
    assert arbiter.steps()["job"] == 2
    crew.tell(1, "go on")
    first, second = values_of(crew)
    assert first == second


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
    child = fork_child(model, computes=rank == 1)
    say(child)
    hear()
    return child


def fork_child(model: nn.Module, *, computes: bool) -> int:
    child = os.fork()
    if child == 0:
        if computes:
            model.eval()
            with torch.no_grad():
                model.module(torch.ones(1, 4))
                model(torch.ones(1, 4))
        signal.pause()
    return child


def test_children_of_workers_neither_take_turns_nor_keep_a_dead_parent_in(arbiter: Arbiter, other: Other) -> None:
    environment = {"UNDERTOW_SHARE_SOCKET": str(arbiter.path)}
    crew = start_workers(2, load_data, init=False, environment=environment)
    children = hear_all([crew])
    try:
        assert max(arbiter.turns()) > 0  # how many depends on when the workers heard of the other job
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


def make_two_learn_from_each_other(rank: int, api: str) -> str:
    """Two wrappers, whose passes meet; a gradient of a gradient; layers that are computed again."""
    torch.manual_seed(0)
    maker, judge = (
        Checkpointed(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)),
        Checkpointed(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)),
    )
    steps = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (maker, judge)]
    wrapped = [DistributedDataParallel(net) for net in (maker, judge)]
    if api == "overlapped":
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
    for api in ("plain", "overlapped"):
        crews.append(start_workers(2, make_two_learn_from_each_other, api, environment=arbiter.environment))
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
