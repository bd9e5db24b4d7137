"""Hosts and jobs that share them, as a seed decides; and how long they may take at most.

In: dice.  Out: a `Town`: hosts, jobs on them that come at any time, the claims that always hold.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from undertow.crossover.turns import LEASE_S
from undertow.faults.case import Case
from undertow.faults.turns_claims import Claims
from undertow.faults.turns_host import Host
from undertow.faults.turns_job import Job, Nature
from undertow.faults.turns_world import World

# Steps of all workers together: a run takes some milliseconds.
MOST_WORKER_STEPS = 70
LETTERS = 12  # at most, that one worker's step takes one after the other, besides those for its layers


@dataclass
class Town:
    world: World
    hosts: list[Host]
    jobs: list[Job]
    starts_s: list[float]

    @property
    def is_done(self) -> bool:
        return all(job.is_done for job in self.jobs)

    @property
    def bound_s(self) -> float:
        """Something goes on at any time: a layer, data, the network, a letter.  All of them one after the other."""
        return max(self.starts_s) + sum(self._bound_job_s(job) + job.nature.spread_s for job in self.jobs)

    def run(self, *, more_s: float = 0.0) -> None:
        """Until all jobs have ended; faults may take some more time."""
        for job, start_s in zip(self.jobs, self.starts_s, strict=True):
            self.world.at(start_s, job.start)
        self.world.run(lambda: self.is_done, most_s=self.bound_s + more_s)
        if not self.is_done:
            late = [worker for job in self.jobs for worker in job.workers if not worker.is_done]
            names = ", ".join(worker.name for worker in late)
            self.world.fail(f"deadlock: {names} should have been done after {self.bound_s + more_s:.1f} s")

    def _bound_job_s(self, job: Job) -> float:
        nature = job.nature
        worker_s = sum(nature.device_s * worker.home.slowness + nature.load_s for worker in job.workers)
        letters = (LETTERS + 6 * nature.layers) * len(job.workers)
        delay_s = max(host.delay_s for host in self.hosts) + nature.delay_s
        return (nature.steps + 1) * ((worker_s + nature.network_s) * (1 + nature.jitter) + letters * delay_s)


def draw_town(case: Case, *, lease_s: float = LEASE_S, most_jobs: int = 8) -> Town:
    """Anything goes."""
    world, dice = World(case), case.dice
    delay_s = dice.choice([1e-4, 1e-3, 1e-2])
    slowness = dice.choice([0.0, 0.0, 0.2, 2.0])
    hosts = [
        Host(world, number, slowness=1 + dice.uniform(0, slowness), delay_s=delay_s, lease_s=lease_s)
        for number in range(dice.randint(1, 4))
    ]
    count = min(most_jobs, dice.choice([2, 2, 2, 3, 3, 4, 8]))
    jobs = [draw_job(world, name, hosts, MOST_WORKER_STEPS // count) for name in "ABCDEFGH"[:count]]
    starts_s = [dice.choice([0.0, dice.uniform(0, 1)]) for _ in jobs]
    return make_town(world, hosts, jobs, starts_s)


def make_town(world: World, hosts: list[Host], jobs: list[Job], starts_s: list[float]) -> Town:
    for job, start_s in zip(jobs, starts_s, strict=True):
        where = ", ".join(f"{worker.name} on {worker.host}" for worker in job.workers)
        world.tell(f"{job.nature} comes at {start_s:.4f}: {where}")
    Claims(world, hosts, jobs)
    return Town(world, hosts, jobs, starts_s)


def draw_job(world: World, name: str, hosts: Sequence[Host], worker_steps: int) -> Job:
    dice = world.dice
    homes = [host for host in dice.sample(hosts, dice.randint(1, len(hosts))) for _ in range(dice.choice([1, 1, 2, 3]))]
    dice.shuffle(homes)
    steps = max(2, min(10, worker_steps // len(homes)))
    return Job(world, draw_nature(dice, name, steps), homes)


def draw_nature(dice: random.Random, name: str, steps: int) -> Nature:
    compute_s = 10 ** dice.uniform(-2, -0.5)
    return Nature(
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
