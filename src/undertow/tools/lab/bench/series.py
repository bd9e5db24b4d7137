"""Measures a series: one model on a number of hosts, under several systems, at one bandwidth after another.

In: what to measure.  Out: one point for each system and bandwidth.
All systems stay on the hosts for the whole series and take turns, lap by lap, in an order
that changes from round to round, so that changes in the machine's load affect all of them alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from undertow import bounds
from undertow.errors import ConfigError, LabError
from undertow.observe.report.columns import describe_link
from undertow.observe.report.points import NOISE, Point
from undertow.plan.scheme import count_dense_traffic
from undertow.progress import Progress
from undertow.tools.lab.bench.laps import Record, Summary
from undertow.tools.lab.bench.messages import Assignment, Ready
from undertow.tools.lab.bench.worker_group import REAL_STEP_S, WorkerGroup, find_timeout_s
from undertow.tools.lab.link_check import shape_links
from undertow.tools.lab.network import Network, check_size, count_sent
from undertow.tools.lab.real import REAL_NAMES
from undertow.tools.lab.systems import find_system
from undertow.tools.zoo import MODELS
from undertow.tools.zoo.catalogue import unknown_name
from undertow.units import GIGA

# A noisy point gets up to this many times the planned rounds.
MAX_ROUNDS_FACTOR = 2
REFERENCE = "ddp"
COMPUTE = "local"
SLOWEST_BITS_PER_S = 1e6


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    hosts: int
    bandwidths_gbit: tuple[float | None, ...]  # nominal; None: not shaped
    scale: float = 1.0
    slowdown: float = 1.0
    rounds: int = 4
    lap_s: float = 3.0

    def check(self, *models: str) -> None:
        """Raise `ConfigError` if these models cannot be measured so."""
        real = [model for model in models if model in REAL_NAMES]
        if real and (self.scale, self.slowdown) != (1, 1):
            raise ConfigError(
                f"{real[0]} computes for real and cannot be scaled or slowed down: leave --scale and --slowdown out"
            )
        if self.hosts < 2:
            raise ConfigError(f"--hosts {self.hosts}: at least two hosts are needed for communication")
        check_size(self.hosts)
        bounds.SCALE.check("--scale", self.scale)
        for speed in self.bandwidths_gbit:
            if (rate := self.link_rate(speed)) is not None and rate < SLOWEST_BITS_PER_S:
                raise ConfigError(
                    f"--scale {self.scale:g} and --slowdown {self.slowdown:g} leave too little of "
                    f"{describe_link(speed)} to measure: use smaller values"
                )
        if self.rounds < 2:
            raise ConfigError(f"--rounds {self.rounds} is not enough: two are needed to see whether they agree")
        bounds.LAP_S.check("--lap", self.lap_s)

    def link_rate(self, bandwidth_gbit: float | None) -> float | None:
        """Return the emulated rate in bits per second; None: not shaped."""
        return None if bandwidth_gbit is None else bandwidth_gbit * GIGA / self.scale / self.slowdown

    def describe_links(self, bandwidth_gbit: float | None) -> str:
        return f"{self.hosts} hosts, {describe_link(bandwidth_gbit)}"

    def assign(self, model: str, system: str, *, batch: int | None = None, devices: str | None = None) -> Assignment:
        """Return the task of a worker."""
        return Assignment(
            model=model, system=system, scale=self.scale, slowdown=self.slowdown, batch=batch, devices=devices
        )


def check_model(name: str) -> None:
    """Raise `ConfigError` if no bench knows this model."""
    if name not in (*MODELS, *REAL_NAMES):
        raise unknown_name("model", name, (*MODELS, *REAL_NAMES))


@dataclass(frozen=True, kw_only=True)
class Series(BenchPlan):
    """Plan of one series; checked here, before anything is started."""

    model: str
    systems: tuple[str, ...]
    batch: int | None = None

    def __post_init__(self) -> None:
        check_model(self.model)
        bounds.SLOWDOWN.check("--slowdown", self.slowdown)
        if not self.systems:
            raise ConfigError("--systems is empty: name at least one, such as undertow")
        for system in self.systems:
            find_system(system)
        self.check(self.model)
        if self.batch is not None:
            bounds.BATCH.check("--batch", self.batch)

    @property
    def all_systems(self) -> tuple[str, ...]:
        """The requested systems; where compute is real, also the one that measures compute alone."""
        if self.model in REAL_NAMES and COMPUTE not in self.systems:
            return (COMPUTE, *self.systems)
        return self.systems

    @property
    def laps(self) -> int:
        """Number of laps if none has to be repeated; starting a system counts as one."""
        return len(self.all_systems) + len(self.bandwidths_gbit) * self.laps_per_bandwidth

    @property
    def laps_per_bandwidth(self) -> int:
        """Number of laps at one bandwidth: checking the links counts as one, and each system warms up first."""
        return 1 + len(self.all_systems) * (1 + self.rounds)

    def describe(self, bandwidth_gbit: float | None) -> str:
        return f"{self.model}, {self.describe_links(bandwidth_gbit)}"


@dataclass(frozen=True)
class BandwidthResult:
    """Result of one bandwidth of a series: its points, or why there are none."""

    points: list[Point]
    refusal: str = ""


def measure(
    series: Series, network: Network, *, environ: Mapping[str, str], progress: Progress
) -> Iterator[BandwidthResult]:
    """Measure one bandwidth after another; leave out those at which the links fail their check."""
    with ExitStack() as stack:
        # Shaped from the start: systems may measure the links when they join.
        network.shape(series.link_rate(series.bandwidths_gbit[0]))
        groups = []
        for name in series.all_systems:  # one after another, with nothing else on the links
            progress.say(f"{series.model}: starting {name} on {series.hosts} hosts")
            assignment = series.assign(series.model, name, batch=series.batch)
            groups.append(stack.enter_context(WorkerGroup(network, find_system(name), assignment, environ)))
            ready = groups[-1].wait_until_ready()
            progress.advance()
        for bandwidth_gbit in series.bandwidths_gbit:
            bench = _Bench(series, bandwidth_gbit, network, groups, ready, progress)
            refusal = bench.shape()
            progress.advance()
            if refusal:
                progress.advance(series.laps_per_bandwidth - 1)
                yield BandwidthResult([], f"{series.describe(bandwidth_gbit)} is left out: {refusal}")
            else:
                yield BandwidthResult(bench.measure())


@dataclass(frozen=True)
class _Bench:
    """Bench of all systems at one bandwidth."""

    series: Series
    bandwidth_gbit: float | None
    network: Network
    groups: Sequence[WorkerGroup]
    ready: Ready
    progress: Progress

    @property
    def _title(self) -> str:
        return self.series.describe(self.bandwidth_gbit)

    def measure(self) -> list[Point]:
        steps = {group: self._warm_up(group) for group in self.groups}
        records = {group: Record() for group in self.groups}
        for number in range(self.series.rounds * MAX_ROUNDS_FACTOR):
            if number >= self.series.rounds and not any(r.disagreement > NOISE for r in records.values()):
                break
            if number >= self.series.rounds:
                self.progress.expect(len(self.groups))
            for group in self._order_groups(number):
                self.progress.say(f"{self._title}: {group.name}, round {number + 1}")
                self._run(group, steps[group], records[group])
        return self._make_points({group.name: record.summarise() for group, record in records.items()})

    def shape(self) -> str:
        """Limit the links to the bandwidth; return why they failed their check, or an empty string."""
        rate = self.series.link_rate(self.bandwidth_gbit)
        if rate is None:
            return ""
        self.progress.say(f"{self._title}: checking the links")
        try:
            shape_links(self.network, rate)
        except LabError as error:
            return str(error)
        return ""

    def _warm_up(self, group: WorkerGroup) -> int:
        """Run the first steps, and return how many steps make a lap."""
        self.progress.say(f"{self._title}: {group.name}, warming up")
        record = Record()
        self._run(group, group.warm_up_steps, record)
        return 1 + min(20, max(3, math.ceil(self.series.lap_s / record.durations_s[0][-1])))

    def _order_groups(self, number: int) -> list[WorkerGroup]:
        """Return the groups in the order of this round.

        The order changes every two rounds, so that even and odd rounds see the same orders.
        """
        first = (number // 2) % len(self.groups)
        return [*self.groups[first:], *self.groups[:first]]

    def _run(self, group: WorkerGroup, steps: int, record: Record) -> None:
        before = self.network.counters()
        whole_bytes = count_dense_traffic(self.ready.gradient_bytes, self.series.hosts)
        step_s = self._find_transfer_s(whole_bytes) + (self.ready.compute_s or REAL_STEP_S)
        laps = group.run(steps, timeout_s=find_timeout_s(steps * step_s))
        record.add(laps, bytes_out=count_sent(before, self.network.counters()))
        self.progress.advance()

    def _find_transfer_s(self, size_bytes: float) -> float:
        """Return the shortest time in which a link can carry these bytes."""
        rate = self.series.link_rate(self.bandwidth_gbit)
        return 0.0 if rate is None else size_bytes * 8 / rate

    def _make_points(self, summaries: Mapping[str, Summary]) -> list[Point]:
        """Return a point for each system, with times as they are without the slowdown."""
        slowdown = self.series.slowdown
        compute_s = (self.ready.compute_s or summaries[COMPUTE].iteration_s) / slowdown
        reference = summaries.get(REFERENCE)
        return [
            Point(
                model=self.series.model,
                hosts=self.series.hosts,
                bandwidth_gbit=self.bandwidth_gbit,
                scale=self.series.scale,
                slowdown=slowdown,
                system=name,
                batch=self.ready.batch,
                iteration_s=summary.iteration_s / slowdown,
                iteration_low_s=summary.low_s / slowdown,
                iteration_high_s=summary.high_s / slowdown,
                compute_s=compute_s,
                bound_s=max(compute_s, self._find_transfer_s(summary.bytes_out) / slowdown),
                speedup=self.series.hosts * compute_s * slowdown / summary.iteration_s,
                gain_over_ddp=reference.iteration_s / summary.iteration_s if reference else None,
                bytes_out_per_host=summary.bytes_out,
                cpu_s=summary.cpu_s,
                steps=summary.steps,
                disagreement=summary.disagreement,
                origin="measured",
            )
            for name, summary in summaries.items()
        ]
