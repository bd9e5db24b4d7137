"""Several jobs that train at the same time on the same virtual hosts.

In: jobs, hosts, whether there are arbiters.  Out: how long a step of each takes, and who computed when.
Every job has workers and engines of its own; all share the hosts' links and devices.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from undertow.crossover.messages import VERSION, Hello
from undertow.sim.run import Job, find_cluster, make_stage, no_collection
from undertow.sim.schedules import Schedule
from undertow.sim.sharing_turns import Arbiter, Turn
from undertow.sim.sharing_worker import Companion, Device
from undertow.sim.subject import Subject
from undertow.sim.sweep import GROWTH, Setting
from undertow.sim.topology import Topology
from undertow.watch import NOBODY, Watch

# Steps of every job before the time that counts, and in it.
EARLY_STEPS = 6
STEPS, NOISY_STEPS = 10, 40
# A job that has not made its steps while another one made so many times as many hardly ever computes.
MOST_TIMES = 40
# Jobs do not begin at the same moment: each by this part of a step after the one before.
APART = 0.3


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A job, and what it asks for."""

    subject: Subject
    schedule: Schedule
    weight: float = 1.0
    is_urgent: bool = False


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What was seen, in the order of the jobs, while all of them trained."""

    steps_s: list[float]  # of a step; infinite, if the job hardly ever computed
    compute_s: list[float]  # of which so long on the device, on the slowest host
    links_s: float  # how long the busiest host's link was filled, for each step of the first job
    begin_s: float  # of the time that counts
    end_s: float
    devices: Sequence[Device]  # by rank
    arbiters: Sequence[Arbiter]  # by host

    def find_device_s(self, job: int) -> float:
        """How long it computed on the first device."""
        return sum(
            max(0.0, min(span.end_s, self.end_s) - max(span.begin_s, self.begin_s))
            for span in self.devices[0].spans
            if span.job == job
        )


def train(
    tenants: Sequence[Tenant],
    topology: Topology,
    setting: Setting | None = None,
    *,
    has_arbiters: bool,
    watch: Watch = NOBODY,
) -> Trained:
    """Until each has made enough steps.  Tells `weigh` laps, and leaves it to the caller to expect them."""
    return _Run(tenants, topology, setting or Setting(), has_arbiters=has_arbiters, watch=watch).run()


def weigh(jobs: int, topology: Topology, setting: Setting | None = None) -> float:
    """How many laps such a training is."""
    return jobs * _count_steps(setting or Setting()) * _weigh_step(topology)


def _count_steps(setting: Setting) -> int:
    """Of each job."""
    return EARLY_STEPS + (setting.steps or (STEPS if setting.noise.is_silent else NOISY_STEPS))


def _weigh_step(topology: Topology) -> float:
    return float(len(topology.places) ** GROWTH)


class _Run:
    """Used once."""

    def __init__(
        self,
        tenants: Sequence[Tenant],
        topology: Topology,
        setting: Setting,
        *,
        has_arbiters: bool,
        watch: Watch,
    ) -> None:
        self._watch = watch
        self._stage = make_stage(topology)
        self._clock = self._stage.clock
        self._setting = setting
        self._steps = _count_steps(setting)
        self._unfinished = set(range(len(tenants)))
        self._missing_steps = len(tenants) * self._steps  # of all jobs
        # One for each worker: those of all jobs that have the same rank share it.
        self._devices = [Device(self._clock) for _ in topology.places]
        self._arbiters = [Arbiter(self._clock, setting.costs.word_s) for _ in topology.hosts if has_arbiters]
        self._compute_s: list[float] = []
        self._crews = [self._make_crew(number, tenant) for number, tenant in enumerate(tenants)]

    def run(self) -> Trained:
        begin_s = 0.0
        for crew, compute_s in zip(self._crews, self._compute_s, strict=True):
            for worker in crew:
                self._clock.at(begin_s, worker.start)
            begin_s += APART * compute_s
        with no_collection():
            self._clock.run()
        self._watch.lap(self._missing_steps * _weigh_step(self._stage.topology))
        return self._summarise([_find_ends_s(crew) for crew in self._crews])

    def _summarise(self, ends_s: Sequence[Sequence[float]]) -> Trained:
        running = [ends for ends in ends_s if len(ends) > EARLY_STEPS]
        begin_s, end_s = max(ends[EARLY_STEPS - 1] for ends in running), min(ends[-1] for ends in running)
        steps = [count_steps(ends, end_s) - count_steps(ends, begin_s) for ends in ends_s]
        return Trained(
            steps_s=[(end_s - begin_s) / count if count else math.inf for count in steps],
            compute_s=self._compute_s,
            links_s=self._find_filled_s() / len(self._crews[0][0].ends_s),
            begin_s=begin_s,
            end_s=end_s,
            devices=self._devices,
            arbiters=self._arbiters,
        )

    def _find_filled_s(self) -> float:
        """Of all hosts' links the one that was filled for the longest time."""
        topology = self._stage.topology
        return max(
            sent * 8 / (host.bandwidth_bits_per_s * topology.goodput)
            for sent, host in zip(self._stage.fabric.bytes_out, topology.hosts, strict=True)
        )

    def _make_crew(self, number: int, tenant: Tenant) -> list[Companion]:
        """The workers of a job."""
        topology, costs = self._stage.topology, self._setting.costs
        profile = tenant.subject.profile
        cluster = find_cluster(profile, topology, tenant.subject.device, costs)
        job = Job(profile, tenant.schedule, cluster, costs, self._stage, number)
        slowest = max(host.slowdown for host in topology.hosts)
        self._compute_s.append(slowest * sum(layer.forward_s + layer.backward_s for layer in job.layers))
        # A word from one worker of a job to another goes through both engines.
        turns = [Turn(self._clock, topology.latency_s + 2 * costs.message_s) for _ in topology.places]
        crew = [self._make_worker(number, tenant, job, rank, turn) for rank, turn in enumerate(turns)]
        job.join(crew)
        if self._arbiters:
            self._introduce(number, tenant, turns)
        return crew

    def _make_worker(self, number: int, tenant: Tenant, job: Job, rank: int, turn: Turn) -> Companion:
        places = len(self._stage.topology.places)

        def pace(rank: int, step: int) -> float:
            return self._setting.noise.pace(number * places + rank, step)  # jobs are not slow at the same time

        return Companion(
            self._clock,
            job.layers,
            job.find_pace(rank, pace),
            has_gates=tenant.schedule.has_gates,
            turn=turn,
            compute=partial(self._devices[rank].run, number),
            on_start=partial(self._count, number) if rank == 0 else None,
        )

    def _introduce(self, number: int, tenant: Tenant, turns: Sequence[Turn]) -> None:
        places = self._stage.topology.places
        for rank, (turn, place) in enumerate(zip(turns, places, strict=True)):
            turn.colleagues = turns
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
            turn.meet(self._arbiters[place], hello)

    def _count(self, number: int, step: int) -> None:
        """A job begins its next step."""
        if 0 < step <= self._steps:
            self._missing_steps -= 1
            self._watch.lap(_weigh_step(self._stage.topology))
        # One more: not all of its workers have ended the one before.
        if step > self._steps:
            self._unfinished.discard(number)
        if not self._unfinished or step > MOST_TIMES * self._steps:
            self._clock.stop()


def _find_ends_s(crew: Sequence[Companion]) -> list[float]:
    """When the last worker ended each step."""
    return [max(ends) for ends in zip(*(worker.ends_s for worker in crew), strict=False)]


def count_steps(ends_s: Sequence[float], time_s: float) -> float:
    """How many steps, with a part of the one that goes on, had ended at this time."""
    done = bisect_right(ends_s, time_s)
    if not 0 < done < len(ends_s):
        return float(done)
    before_s, after_s = ends_s[done - 1], ends_s[done]
    return done + (time_s - before_s) / (after_s - before_s)
