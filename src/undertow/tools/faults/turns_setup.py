"""Random hosts and jobs that share them, a bound on their time, and claims that are checked after every event.

In: a case with its dice.  Out: a `SharedSetup`: hosts, jobs that start at any time, and these claims:
- no two jobs compute on a device, unless one of them has exceeded its lease or does not know of the arbiter yet;
- an arbiter and a worker without messages in flight agree on whether the worker waits, computes, or is alone;
- no worker waits for a turn that no job has;
- no job's count of device time is far above the time that has passed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from undertow.crossover.turn_state import TurnMode
from undertow.crossover.turns import LEASE_S, Turns
from undertow.tools.faults.event_log import Case
from undertow.tools.faults.turns_job import Job, JobTraits, SlowHost, WatchedArbiter, Worker
from undertow.tools.faults.world import CheckedWorld

# Steps of all workers together: a run takes some milliseconds.
MOST_WORKER_STEPS = 70
MESSAGES = 12  # most messages, one after another, of a worker's step, besides those for its layers


class Claims:
    """Claims about all hosts and jobs of a run."""

    def __init__(self, world: CheckedWorld, hosts: Sequence[SlowHost], jobs: Sequence[Job]) -> None:
        self._world, self._hosts = world, hosts
        workers = [worker for job in jobs for worker in job.workers]
        self._workers = {host.number: [one for one in workers if one.host == host.number] for host in hosts}
        self._least_weight = min(job.traits.weight for job in jobs)
        world.checks.append(self.check)

    def check(self, host: int) -> None:
        arbiter = self._hosts[host].arbiter
        if arbiter is None:
            return
        turns = arbiter.turns
        self._check_exclusion(host, arbiter)
        if turns is not None:
            self._check_conserving(turns, arbiter)
            self._check_counts(turns, arbiter)
            for worker in self._workers[host]:
                self._check_agreement(worker, turns, arbiter)

    def _check_exclusion(self, host: int, arbiter: WatchedArbiter) -> None:
        computing = [worker for worker in self._workers[host] if _computes_by_right(worker, arbiter)]
        if len({worker.job for worker in computing}) > 1:
            names = " and ".join(worker.name for worker in computing)
            self._world.fail(f"two jobs compute at a time: {names} on host {host}")

    def _check_conserving(self, turns: Turns, arbiter: WatchedArbiter) -> None:
        if turns.turn is None and any(account.waiting for account in turns.accounts.values()):
            self._world.fail(f"a free turn: a worker waits for it at {arbiter.name}")
        if turns.turn is not None and not turns.turn.computing:
            self._world.fail(f"a free turn: {arbiter.name} counts it as taken")

    def _check_counts(self, turns: Turns, arbiter: WatchedArbiter) -> None:
        """Check the counts against the time of all hosts: a job may be lifted to the counts of another host."""
        # Twice, because positions run ahead by a step, and arbiter and worker may both count the time of a job that was
        # alone a moment ago.
        most_s = 2 * self._world.now_s / self._least_weight + 1.0
        for name, account in turns.accounts.items():
            if account.virtual_s > most_s:
                self._world.fail(f"{arbiter.name} counts {account.virtual_s:.3f} s for {name}; there were {most_s:.3f}")

    def _check_agreement(self, worker: Worker, turns: Turns, arbiter: WatchedArbiter) -> None:
        """Check that worker and arbiter agree once all messages have arrived."""
        connection, state = worker.connection, worker.state
        if connection is None or connection.arbiter is not arbiter or connection.in_flight:
            return
        if connection.is_crossed and (state.is_computing or state.is_waiting):
            return
        connection.is_crossed = False
        member, name = connection.member, worker.job.traits.name
        is_waiting = name in turns.accounts and member in turns.accounts[name].waiting
        is_granted = turns.turn is not None and member in turns.turn.computing
        if (state.mode is TurnMode.ALONE) is not turns.is_alone:
            self._world.fail(f"{worker.name} believes that {state.mode.value}; there are {len(turns.accounts)} jobs")
        if state.is_waiting is not is_waiting:
            self._world.fail(f"{worker.name} and its arbiter disagree on whether it waits for the turn: {is_waiting}")
        if state.is_granted is not is_granted and member not in arbiter.overdue:
            self._world.fail(f"{worker.name} and its arbiter disagree on whether it has the turn: {is_granted}")


def _computes_by_right(worker: Worker, arbiter: WatchedArbiter) -> bool:
    """Return whether the worker computes in a turn of this arbiter, or need not ask it."""
    state, connection = worker.state, worker.connection
    if not state.is_computing or worker.is_done or connection is None or connection.arbiter is not arbiter:
        return False
    if connection.is_crossed or connection.member in arbiter.overdue:
        return False
    return state.mode is TurnMode.ALONE or state.is_granted


@dataclass
class SharedSetup:
    """Hosts, and jobs that share them."""

    world: CheckedWorld
    hosts: list[SlowHost]
    jobs: list[Job]
    starts_s: list[float]

    @property
    def is_done(self) -> bool:
        return all(job.is_done for job in self.jobs)

    @property
    def bound_s(self) -> float:
        """Bound on the length of the run: all layers, loading, communication and messages, one after the other."""
        return max(self.starts_s) + sum(self._bound_job_s(job) + job.traits.spread_s for job in self.jobs)

    def run(self, *, more_s: float = 0.0) -> None:
        """Run until all jobs have ended, with `more_s` on top of the bound for faults."""
        for job, start_s in zip(self.jobs, self.starts_s, strict=True):
            self.world.after(start_s, job.start)
        self.world.run_until(lambda: self.is_done, most_s=self.bound_s + more_s)
        if not self.is_done:
            late = [worker for job in self.jobs for worker in job.workers if not worker.is_done]
            names = ", ".join(worker.name for worker in late)
            self.world.fail(f"deadlock: {names} should have been done after {self.bound_s + more_s:.1f} s")

    def _bound_job_s(self, job: Job) -> float:
        traits = job.traits
        worker_s = sum(traits.device_s * worker.home.slowness + traits.load_s for worker in job.workers)
        messages = (MESSAGES + 6 * traits.layers) * len(job.workers)
        delay_s = max(host.delay_s for host in self.hosts) + traits.delay_s
        return (traits.steps + 1) * ((worker_s + traits.network_s) * (1 + traits.jitter) + messages * delay_s)


def draw_setup(case: Case, *, lease_s: float = LEASE_S, most_jobs: int = 8) -> SharedSetup:
    """Draw hosts and jobs of any kind."""
    world, dice = CheckedWorld(case), case.dice
    delay_s = dice.choice([1e-4, 1e-3, 1e-2])
    slowness = dice.choice([0.0, 0.0, 0.2, 2.0])
    hosts = [
        SlowHost(world, number, slowness=1 + dice.uniform(0, slowness), delay_s=delay_s, lease_s=lease_s)
        for number in range(dice.randint(1, 4))
    ]
    count = min(most_jobs, dice.choice([2, 2, 2, 3, 3, 4, 8]))
    jobs = [draw_job(world, name, hosts, MOST_WORKER_STEPS // count) for name in "ABCDEFGH"[:count]]
    starts_s = [dice.choice([0.0, dice.uniform(0, 1)]) for _ in jobs]
    return make_setup(world, hosts, jobs, starts_s)


def make_setup(world: CheckedWorld, hosts: list[SlowHost], jobs: list[Job], starts_s: list[float]) -> SharedSetup:
    for job, start_s in zip(jobs, starts_s, strict=True):
        where = ", ".join(f"{worker.name} on {worker.host}" for worker in job.workers)
        world.note(f"{job.traits} starts at {start_s:.4f}: {where}")
    Claims(world, hosts, jobs)
    return SharedSetup(world, hosts, jobs, starts_s)


def draw_job(world: CheckedWorld, name: str, hosts: Sequence[SlowHost], worker_steps: int) -> Job:
    dice = world.dice
    homes = [host for host in dice.sample(hosts, dice.randint(1, len(hosts))) for _ in range(dice.choice([1, 1, 2, 3]))]
    dice.shuffle(homes)
    steps = max(2, min(10, worker_steps // len(homes)))
    return Job(world, draw_traits(dice, name, steps), homes)


def draw_traits(dice: random.Random, name: str, steps: int) -> JobTraits:
    compute_s = 10 ** dice.uniform(-2, -0.5)
    return JobTraits(
        name=name,
        steps=steps,
        layers=dice.randint(1, 6),
        compute_s=compute_s,
        network_s=compute_s * dice.choice([0.0, dice.uniform(0.1, 1), dice.uniform(1, 3)]),
        optimizer_s=compute_s * dice.choice([0.0, 0.05, 0.2]),
        load_s=compute_s * dice.choice([0.0, 0.01, 0.5]),
        weight=dice.choice([1.0, 1.0, 2.0, 0.3]),
        is_urgent=dice.random() < 0.15,
        is_gated=dice.random() < 0.3,
        jitter=dice.choice([0.0, 0.03, 0.5]),
        delay_s=compute_s * dice.choice([0.001, 0.02, 0.5]),
        spread_s=dice.choice([0.0, 0.01, 0.3]),
    )
