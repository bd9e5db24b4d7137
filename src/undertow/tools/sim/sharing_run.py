"""Several jobs that train at the same time on the same virtual hosts.

In: jobs, hosts, whether there are arbiters.  Out: the time of a step of each job, and the spans of the devices.
Every job has workers and engines of its own; all share the hosts' links and devices.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from undertow.crossover.messages import VERSION, Hello
from undertow.progress import SILENT, Progress
from undertow.tools.sim.run import Job, Site, find_cluster, no_collection
from undertow.tools.sim.schedules import Schedule
from undertow.tools.sim.subject import Subject
from undertow.tools.sim.sweep import GROWTH, Setting
from undertow.tools.sim.topology import Topology
from undertow.tools.sim.worker import Device, SharingWorker
from undertow.tools.virtual.arbiter import Arbiter, Host
from undertow.tools.virtual.worker import JobWorkers, VirtualWorker
from undertow.tools.virtual.world import World

# Steps of every job before the time that counts, and in it.
EARLY_STEPS = 6
STEPS, NOISY_STEPS = 10, 40
# The run ends when one job has made this many times the steps that it needs: the others hardly ever compute.
MOST_TIMES = 40
# All workers connect to their arbiters in this time, before the first job starts.
MEETING_S = 1.0
# Jobs do not start at the same time: each starts this fraction of a step after the previous one.
APART = 0.3


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """Job that shares hosts, with its terms."""

    subject: Subject
    schedule: Schedule
    weight: float = 1.0
    is_urgent: bool = False


@dataclass(frozen=True, kw_only=True)
class SharedRun:
    """Figures of jobs that trained together; lists are in the order of the jobs."""

    steps_s: list[float]  # of a step; infinite if the job hardly ever computed
    compute_s: list[float]  # the part of it on the device, on the slowest host
    links_s: float  # how long the busiest host's link was filled, per step of the first job
    begin_s: float  # of the time that counts
    end_s: float
    devices: Sequence[Device]  # by rank
    arbiters: Sequence[Arbiter]  # by host; empty without arbiters


def train(
    tenants: Sequence[Tenant],
    topology: Topology,
    setting: Setting | None = None,
    *,
    has_arbiters: bool,
    progress: Progress = SILENT,
) -> SharedRun:
    """Train until each job has made enough steps.  Advances by `weigh` units; the caller announces them."""
    return _Run(tenants, topology, setting or Setting(), has_arbiters=has_arbiters, progress=progress).run()


def weigh(jobs: int, topology: Topology, setting: Setting | None = None) -> float:
    """Return the units of progress of such a training."""
    return jobs * _count_steps(setting or Setting()) * _weigh_step(topology)


def _count_steps(setting: Setting) -> int:
    return EARLY_STEPS + (setting.steps or (STEPS if setting.noise.is_silent else NOISY_STEPS))


def _weigh_step(topology: Topology) -> float:
    return float(len(topology.places) ** GROWTH)


class _Run:
    """Run of several jobs on the same virtual hosts.  Used once."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        topology: Topology,
        setting: Setting,
        *,
        has_arbiters: bool,
        progress: Progress,
    ) -> None:
        self._progress = progress
        self._world = World(-MEETING_S)
        self._site = Site(topology, self._world)
        self._setting = setting
        self._steps = _count_steps(setting)
        self._unfinished = set(range(len(tenants)))
        self._missing_steps = len(tenants) * self._steps  # of all jobs
        # One for each rank: the workers with this rank in all jobs share it.
        self._devices = [Device(self._world) for _ in topology.places]
        self._hosts = [Host(self._world, number, self._find_message_s) for number in range(len(topology.hosts))]
        for host in self._hosts if has_arbiters else ():
            host.start_arbiter()
        self._compute_s: list[float] = []
        self._workers_of_jobs = [self._make_workers(number, tenant) for number, tenant in enumerate(tenants)]

    def run(self) -> SharedRun:
        begin_s = 0.0
        for workers, compute_s in zip(self._workers_of_jobs, self._compute_s, strict=True):
            for worker in workers:
                self._world.at(begin_s, worker.start)
            begin_s += APART * compute_s
        with no_collection():
            self._world.run()
        self._progress.advance(self._missing_steps * _weigh_step(self._site.topology))
        return self._summarise([_find_ends_s(workers) for workers in self._workers_of_jobs])

    def _summarise(self, ends_s: Sequence[Sequence[float]]) -> SharedRun:
        running = [ends for ends in ends_s if len(ends) > EARLY_STEPS]
        begin_s, end_s = max(ends[EARLY_STEPS - 1] for ends in running), min(ends[-1] for ends in running)
        steps = [count_steps(ends, end_s) - count_steps(ends, begin_s) for ends in ends_s]
        return SharedRun(
            steps_s=[(end_s - begin_s) / count if count else math.inf for count in steps],
            compute_s=self._compute_s,
            links_s=self._find_filled_s() / len(self._workers_of_jobs[0][0].ends_s),
            begin_s=begin_s,
            end_s=end_s,
            devices=self._devices,
            arbiters=[host.arbiter for host in self._hosts if host.arbiter is not None],
        )

    def _find_filled_s(self) -> float:
        """Return for how long the busiest host's link was filled."""
        topology = self._site.topology
        return max(
            sent * 8 / (host.bandwidth_bits_per_s * topology.goodput)
            for sent, host in zip(self._site.fabric.bytes_out, topology.hosts, strict=True)
        )

    def _make_workers(self, number: int, tenant: Tenant) -> list[SharingWorker]:
        topology, costs = self._site.topology, self._setting.costs
        profile = tenant.subject.profile
        cluster = find_cluster(profile, topology, tenant.subject.device, costs)
        job = Job(profile, tenant.schedule, cluster, costs, self._site, number)
        slowest = max(host.slowdown for host in topology.hosts)
        self._compute_s.append(slowest * sum(layer.forward_s + layer.backward_s for layer in job.layers))
        # A message from one worker of a job to another goes through both engines.
        job_workers = JobWorkers(self._world, lambda: topology.latency_s + 2 * costs.message_s)
        workers = [self._make_worker(number, tenant, job, rank, job_workers) for rank in range(len(topology.places))]
        job.join(workers)
        return workers

    def _make_worker(self, number: int, tenant: Tenant, job: Job, rank: int, job_workers: JobWorkers) -> SharingWorker:
        places = self._site.topology.places

        def pace(rank: int, step: int) -> float:
            return self._setting.noise.pace(number * len(places) + rank, step)  # jobs are not slow at the same time

        hello = Hello(
            version=VERSION,
            job=f"job{number}",
            name=tenant.subject.name,
            rank=rank,
            world_size=len(places),
            pid=rank,
            device=f"device{rank}",
            weight=tenant.weight,
            is_urgent=tenant.is_urgent,
        )
        turn = VirtualWorker(self._world, self._hosts[places[rank]], hello, job_workers)
        if turn.home.arbiter is not None:
            turn.connect()
        return SharingWorker(
            self._world,
            job.layers,
            job.find_pace(rank, pace),
            has_gates=tenant.schedule.has_gates,
            turn=turn,
            compute=partial(self._devices[rank].run, number),
            on_start=partial(self._count, number) if rank == 0 else None,
        )

    def _find_message_s(self) -> float:
        """Return the delay of a message between worker and arbiter: none before the first job starts."""
        return self._setting.costs.arbiter_message_s if self._world.now_s >= 0.0 else 0.0

    def _count(self, number: int, step: int) -> None:
        """Note that a job starts its next step; stop the clock when all jobs have made enough."""
        if 0 < step <= self._steps:
            self._missing_steps -= 1
            self._progress.advance(_weigh_step(self._site.topology))
        # One more step, because not all of the job's workers have ended the previous one.
        if step > self._steps:
            self._unfinished.discard(number)
        if not self._unfinished or step > MOST_TIMES * self._steps:
            self._world.stop()


def _find_ends_s(workers: Sequence[SharingWorker]) -> list[float]:
    """Return when the last worker ended each step."""
    return [max(ends) for ends in zip(*(worker.ends_s for worker in workers), strict=False)]


def count_steps(ends_s: Sequence[float], time_s: float) -> float:
    """Return how many steps had ended at this time, plus the fraction done of the current one."""
    done = bisect_right(ends_s, time_s)
    if not 0 < done < len(ends_s):
        return float(done)
    before_s, after_s = ends_s[done - 1], ends_s[done]
    return done + (time_s - before_s) / (after_s - before_s)
