"""Simulated points: every system on every cluster, as `undertow bench` would measure it.

In: a subject, a cluster, systems.  Out: one `Point` for each system.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from undertow import bounds
from undertow.observe.report.points import Point
from undertow.progress import SILENT, Progress
from undertow.tools.sim.engine import Costs
from undertow.tools.sim.run import Outcome, simulate
from undertow.tools.sim.schedules import Schedule, find_schedule
from undertow.tools.sim.subject import Subject
from undertow.tools.sim.topology import LATENCY_S, Topology

REFERENCE = "ddp"
# All workers start the first step together; from the second step, each starts where the previous one has ended.
STEPS = 3
# With at least this many workers the difference is less than a thousandth, and one step is enough.
MANY_WORKERS = 128
NOISY_STEPS = 24
# Measured: twice the workers take about 2.6 times as long to simulate, which is 2 to the power of this.
GROWTH = 1.4


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Random variation of step times, a function of seed, rank and step."""

    jitter: float = 0.0  # the standard deviation of a step's time, as a fraction of it
    straggler_share: float = 0.0  # how likely a worker is to straggle in a step
    straggler_factor: float = 2.0  # how many times longer it then takes
    seed: int = 0

    def __post_init__(self) -> None:
        bounds.JITTER.check("jitter", self.jitter)
        bounds.SHARE.check("share of stragglers", self.straggler_share)
        bounds.STRAGGLE.check("straggler factor", self.straggler_factor)

    @property
    def is_silent(self) -> bool:
        return not self.jitter and not self.straggler_share

    def pace(self, rank: int, step: int) -> float:
        """Return how many times longer than usual a step takes.

        The factor is log-normal: a step is never much shorter than usual, and sometimes much longer.
        """
        if self.is_silent:
            return 1.0
        pick = random.Random(f"{self.seed}/{rank}/{step}")
        factor = pick.lognormvariate(0.0, self.jitter)
        return factor * self.straggler_factor if pick.random() < self.straggler_share else factor


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings of a run: latency, noise, costs, and the number of steps."""

    latency_s: float = LATENCY_S
    noise: Noise = field(default_factory=Noise)
    steps: int | None = None  # that count; None: as many as needed
    costs: Costs = field(default_factory=Costs)

    def count_steps(self, topology: Topology) -> int:
        if self.steps is not None:
            return self.steps
        if not self.noise.is_silent:
            return NOISY_STEPS
        return 1 if topology.is_uniform and len(topology.places) >= MANY_WORKERS else STEPS - 1

    def count_all_steps(self, topology: Topology) -> int:
        """Return how many steps to run: the first does not count unless it is the only one."""
        counted = self.count_steps(topology)
        return 1 if self.steps is None and counted == 1 else counted + 1


def run(
    subject: Subject, topology: Topology, schedule: Schedule, setting: Setting, progress: Progress = SILENT
) -> Outcome:
    """Simulate the steps that count.  Advances by `weigh` units; the caller announces them with `expect`."""
    steps, workers = setting.count_all_steps(topology), len(topology.places)

    def pace(rank: int, step: int) -> float:
        if step:  # the previous one has ended
            progress.advance(workers ** (GROWTH - 1))
        return setting.noise.pace(rank, step)

    outcome = simulate(subject.profile, topology, schedule, subject.device, steps=steps, costs=setting.costs, pace=pace)
    progress.advance(workers**GROWTH)  # the last step of all
    # The first of several steps started on an idle network.
    return outcome if steps == 1 else replace(outcome, steps_s=outcome.steps_s[1:])


def weigh(topology: Topology, setting: Setting) -> float:
    """Return the units of progress of a run."""
    return setting.count_all_steps(topology) * float(len(topology.places) ** GROWTH)


def list_runs(systems: Sequence[str]) -> list[str]:
    """Return the systems to run: those given, and the one that gains are relative to."""
    return list(dict.fromkeys([*systems, REFERENCE]))


def make_points(
    subject: Subject,
    topology: Topology,
    systems: Sequence[str],
    *,
    setting: Setting | None = None,
    progress: Progress = SILENT,
) -> Iterator[Point]:
    setting = setting or Setting()
    outcomes: dict[str, Outcome] = {}
    for system in list_runs(systems):
        progress.say(f"{subject.name}, hosts {len(topology.hosts)}: {system}")
        outcomes[system] = run(subject, topology, find_schedule(system), setting, progress)
    for system in systems:
        yield make_point(subject, topology, system, outcomes[system], reference_s=outcomes[REFERENCE].iteration_s)


def make_point(
    subject: Subject, topology: Topology, system: str, outcome: Outcome, *, reference_s: float | None = None
) -> Point:
    """Return the point of a run, with the fields of a measured one."""
    steps_s = outcome.steps_s
    low_s, _, high_s = statistics.quantiles(steps_s, n=4) if len(steps_s) > 2 else steps_s[:1] * 3
    iteration_s, compute_s = outcome.iteration_s, subject.profile.compute_s
    workers = len(topology.places)
    transfer_s = max(
        sent * 8 / host.bandwidth_bits_per_s for sent, host in zip(outcome.bytes_out, topology.hosts, strict=True)
    )
    return Point(
        model=subject.name,
        hosts=len(topology.hosts),
        bandwidth_gbit=min(host.bandwidth_bits_per_s for host in topology.hosts) / 1e9,
        scale=1.0,
        system=system,
        batch=max(1, round(subject.batch * workers / len(topology.hosts))),
        iteration_s=iteration_s,
        iteration_low_s=low_s if len(steps_s) > 2 else iteration_s,
        iteration_high_s=high_s if len(steps_s) > 2 else iteration_s,
        compute_s=compute_s,
        bound_s=max(compute_s, transfer_s),
        speedup=workers * compute_s / iteration_s,
        gain_over_ddp=None if reference_s is None else reference_s / iteration_s,
        bytes_out_per_host=statistics.fmean(outcome.bytes_out),
        cpu_s=None,
        steps=len(steps_s),
        disagreement=0.0,
        origin="simulated",
    )
