"""A series: one model on so many hosts, under several systems, at one bandwidth after the other.

In: what to measure.  Out: one point for each system and bandwidth.
All systems stay on the hosts for the whole series and take turns, lap by lap, in an order
that changes from round to round, so that a machine's moods meet all of them alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from undertow import bounds
from undertow.errors import ConfigError, LabError
from undertow.lab.bandwidth import format_bandwidth
from undertow.lab.bench.fleet import Fleet
from undertow.lab.bench.laps import Record, Summary
from undertow.lab.bench.messages import Assignment, Ready
from undertow.lab.link_check import check_links
from undertow.lab.network import Network, check_size
from undertow.lab.real.names import REAL_NAMES
from undertow.lab.systems import find_system
from undertow.report.points import NOISE, Point
from undertow.watch import Watch
from undertow.zoo import MODELS
from undertow.zoo.names import unknown_name

GIGA = 1e9
SLOWEST_BITS_PER_S = 1e6
# A noisy point gets this many times the rounds before it is called too noisy.
PATIENCE = 2
# A busy moment of the machine looks like a slow link; a link that is slow is so every time.
CHECKS = 3
REFERENCE = "ddp"
COMPUTE = "local"


@dataclass(frozen=True, kw_only=True)
class Series:
    """What to measure; checked here, before anything is started."""

    model: str
    hosts: int
    bandwidths_gbit: tuple[float | None, ...]  # nominal; None: not shaped
    systems: tuple[str, ...]
    scale: float = 1.0
    slowdown: float = 1.0
    batch: int | None = None
    rounds: int = 4
    lap_s: float = 3.0

    def __post_init__(self) -> None:
        if self.model not in (*MODELS, *REAL_NAMES):
            raise unknown_name("model", self.model, (*MODELS, *REAL_NAMES))
        if self.model in REAL_NAMES and self.scale != 1:
            raise ConfigError(f"{self.model} computes for real and cannot be scaled: leave --scale out")
        if self.model in REAL_NAMES and self.slowdown != 1:
            raise ConfigError(f"{self.model} computes for real and cannot be slowed down: leave --slowdown out")
        bounds.SLOWDOWN.check("--slowdown", self.slowdown)
        if not self.systems:
            raise ConfigError("--systems is empty: name one at least, such as undertow")
        for system in self.systems:
            find_system(system)
        if self.hosts < 2:
            raise ConfigError(f"--hosts {self.hosts}: at least two are needed to have something to say to each other")
        check_size(self.hosts)
        bounds.SCALE.check("--scale", self.scale)
        for speed in self.bandwidths_gbit:
            if (rate := self.link_rate(speed)) is not None and rate < SLOWEST_BITS_PER_S:
                raise ConfigError(
                    f"--scale {self.scale:g} and --slowdown {self.slowdown:g} leave too little of {speed:g} Gbit/s "
                    "to measure: use less"
                )
        if self.rounds < 2:
            raise ConfigError(f"--rounds {self.rounds} is not enough: two are needed to see whether they agree")
        if self.batch is not None:
            bounds.BATCH.check("--batch", self.batch)
        bounds.LAP_S.check("--lap", self.lap_s)

    @property
    def all_systems(self) -> tuple[str, ...]:
        """Those asked for; where compute is real, also what it takes alone."""
        if self.model in REAL_NAMES and COMPUTE not in self.systems:
            return (COMPUTE, *self.systems)
        return self.systems

    @property
    def laps(self) -> int:
        """How many there are, if nothing has to be repeated; to start a system takes as long as one."""
        return len(self.all_systems) + len(self.bandwidths_gbit) * self.laps_of_leg

    @property
    def laps_of_leg(self) -> int:
        """Of one bandwidth: to check the links counts as one, and each system warms up before its turns."""
        return 1 + len(self.all_systems) * (1 + self.rounds)

    def link_rate(self, bandwidth_gbit: float | None) -> float | None:
        """In bits per second, as emulated; None: not shaped."""
        return None if bandwidth_gbit is None else bandwidth_gbit * GIGA / self.scale / self.slowdown

    def describe(self, bandwidth_gbit: float | None) -> str:
        link = "unshaped" if bandwidth_gbit is None else format_bandwidth(bandwidth_gbit * GIGA)
        return f"{self.model}, {self.hosts} hosts, {link}"


@dataclass(frozen=True)
class Leg:
    """One bandwidth of a series: its points, or why there are none."""

    points: list[Point]
    refusal: str = ""


def measure(series: Series, network: Network, *, environ: Mapping[str, str], watch: Watch) -> Iterator[Leg]:
    """One bandwidth after the other; one whose links are not what they claim is left out."""
    with ExitStack() as stack:
        # As the first links are: systems may measure them when they start.
        network.shape(series.link_rate(series.bandwidths_gbit[0]))
        fleets = []
        for name in series.all_systems:  # one after the other, with nobody else on the links
            watch.say(f"{series.model}: starting {name} on {series.hosts} hosts")
            fleets.append(stack.enter_context(Fleet(network, find_system(name), _assign(series, name), environ)))
            ready = fleets[-1].wait_until_ready()
            watch.lap()
        for bandwidth_gbit in series.bandwidths_gbit:
            bench = _Bench(series, bandwidth_gbit, network, fleets, ready, watch)
            refusal = bench.shape()
            watch.lap()
            if refusal:
                watch.lap(series.laps_of_leg - 1)
                yield Leg([], f"{series.describe(bandwidth_gbit)} is left out: {refusal}")
            else:
                yield Leg(bench.measure())


def _assign(series: Series, system: str) -> Assignment:
    return Assignment(
        model=series.model, system=system, scale=series.scale, slowdown=series.slowdown, batch=series.batch
    )


class _Bench:
    """All systems at one bandwidth."""

    def __init__(
        self,
        series: Series,
        bandwidth_gbit: float | None,
        network: Network,
        fleets: Sequence[Fleet],
        ready: Ready,
        watch: Watch,
    ) -> None:
        self._series, self._network, self._fleets, self._ready, self._watch = series, network, fleets, ready, watch
        self._bandwidth_gbit = bandwidth_gbit
        self._title = series.describe(bandwidth_gbit)
        size_bytes = 2 * ready.gradient_bytes * (series.hosts - 1) / series.hosts
        self._transfer_s = self._find_transfer_s(size_bytes)  # of one step, if all gradients travel whole

    def measure(self) -> list[Point]:
        steps = {fleet: self._warm_up(fleet) for fleet in self._fleets}
        records = {fleet: Record() for fleet in self._fleets}
        for number in range(self._series.rounds * PATIENCE):
            if number >= self._series.rounds and not any(r.disagreement > NOISE for r in records.values()):
                break
            if number >= self._series.rounds:
                self._watch.expect(len(self._fleets))
            for fleet in self._turns(number):
                self._watch.say(f"{self._title}: {fleet.name}, round {number + 1}")
                self._run(fleet, steps[fleet], records[fleet])
        return self._make_points({fleet.name: record.summarise() for fleet, record in records.items()})

    def shape(self) -> str:
        """Hold the links to the bandwidth; returns why they are not to be trusted, if so."""
        rate = self._series.link_rate(self._bandwidth_gbit)
        if rate is None:
            return ""
        self._watch.say(f"{self._title}: checking the links")
        self._network.shape(rate)
        refusal = ""
        for _ in range(CHECKS):
            try:
                check_links(self._network, rate)
            except LabError as error:
                refusal = str(error)
            else:
                return ""
        return refusal

    def _warm_up(self, fleet: Fleet) -> int:
        """Returns how many steps make a lap."""
        self._watch.say(f"{self._title}: {fleet.name}, warming up")
        record = Record()
        self._run(fleet, fleet.warm_up_steps, record)
        return 1 + min(20, max(3, math.ceil(self._series.lap_s / record.durations_s[0][-1])))

    def _turns(self, number: int) -> list[Fleet]:
        """Who goes first changes every two rounds, so that both halves of the rounds see every order."""
        first = (number // 2) % len(self._fleets)
        return [*self._fleets[first:], *self._fleets[:first]]

    def _run(self, fleet: Fleet, steps: int, record: Record) -> None:
        before = self._network.counters()
        patience_s = 60.0 + 20.0 * steps * (self._transfer_s + (self._ready.compute_s or 3.0))
        laps = fleet.run(steps, timeout_s=patience_s)
        after = self._network.counters()
        sent = [now.payload_out - then.payload_out for then, now in zip(before, after, strict=True)]
        record.add(laps, bytes_out=sent)
        self._watch.lap()

    def _find_transfer_s(self, size_bytes: float) -> float:
        """How long a link needs for so many bytes, at least."""
        rate = self._series.link_rate(self._bandwidth_gbit)
        return 0.0 if rate is None else size_bytes * 8 / rate

    def _make_points(self, summaries: Mapping[str, Summary]) -> list[Point]:
        """With the times of hosts that are not slowed down."""
        slowdown = self._series.slowdown
        compute_s = (self._ready.compute_s or summaries[COMPUTE].iteration_s) / slowdown
        reference = summaries.get(REFERENCE)
        return [
            Point(
                model=self._series.model,
                hosts=self._series.hosts,
                bandwidth_gbit=self._bandwidth_gbit,
                scale=self._series.scale,
                slowdown=slowdown,
                system=name,
                batch=self._ready.batch,
                iteration_s=summary.iteration_s / slowdown,
                iteration_low_s=summary.low_s / slowdown,
                iteration_high_s=summary.high_s / slowdown,
                compute_s=compute_s,
                bound_s=max(compute_s, self._find_transfer_s(summary.bytes_out) / slowdown),
                speedup=self._series.hosts * compute_s * slowdown / summary.iteration_s,
                gain_over_ddp=reference.iteration_s / summary.iteration_s if reference else None,
                bytes_out_per_host=summary.bytes_out,
                cpu_s=summary.cpu_s,
                steps=summary.steps,
                disagreement=summary.disagreement,
                origin="measured",
            )
            for name, summary in summaries.items()
        ]
