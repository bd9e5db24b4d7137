"""Jobs that take turns come to the bits of a job that is alone, whoever of them, or of the arbiters, dies."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.arbiters import eventually, status_at
from tests.support.sharing import (
    CPU,
    Arbiter,
    Training,
    hear_all,
    running_arbiter,
    steps_alone,
    tell_all,
    train_on_demand,
    values_of,
)
from tests.support.workers import DIED, Crew, hear, say, start_workers
from undertow.torch import DistributedDataParallel

STEPS = 6
RECIPES = [("plain", "sgd"), ("overlapped", "adam"), ("overlapped", "sgd"), ("plain", "adam")]


@pytest.fixture
def arbiter() -> Iterator[Arbiter]:
    with running_arbiter() as running:
        yield running


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


@pytest.fixture(scope="module")
def alone() -> list[dict[tuple[str, str], str]]:
    """What each recipe comes to without any sharing, rank by rank: buffers follow in the next step only."""
    crew = start_workers(2, follow, RECIPES)
    for _ in range(2):
        hear_all([crew])
        tell_all([crew], "go on")
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
        assert "or is stopped: the turn passes to another job" in "".join(outcome.log for outcome in outcomes)


def run_alone_and_stop() -> list[Any]:
    crew = start_workers(1, be_stopped)
    hear_all([crew])
    tell_all([crew], "go on")
    return values_of(crew)
