"""What `undertow share bench` is to measure, checked before anything is started.

In: what the user asked for.  Out: jobs, the arrangements that they are measured in, and how each worker is told.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass

from undertow import bounds
from undertow.errors import ConfigError
from undertow.lab.bench.messages import Assignment
from undertow.lab.network import check_size
from undertow.lab.real.names import REAL_NAMES
from undertow.zoo import MODELS
from undertow.zoo.names import unknown_name

GIGA = 1e9
SLOWEST_BITS_PER_S = 1e6


class Mode(enum.Enum):
    """How much of its communication a job hides by itself; the value names the system of its workers."""

    # Nothing leaves before the end of backward, and backward waits for all of it: what a step takes longer than its
    # computing is communication that nothing covers.  Slices stay, or one shard would get most of the bytes.
    PLAIN = "undertow-no-wait-free-no-gate-no-hybrid"
    EVERYTHING = "undertow"


class Arrangement(enum.Enum):
    """How the jobs are let loose; the value is its name in the table."""

    ALONE = "one after the other"
    TURNS = "alone, taking turns"
    TOGETHER = "together"
    CROSSOVER = "crossover"
    COMPUTE = "without the network"  # only where compute is real and has to be measured

    @property
    def is_company(self) -> bool:
        return self in (Arrangement.TOGETHER, Arrangement.CROSSOVER)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One of those that share."""

    model: str
    weight: float = 1.0
    is_urgent: bool = False

    def __post_init__(self) -> None:
        if self.model not in (*MODELS, *REAL_NAMES):
            raise unknown_name("model", self.model, (*MODELS, *REAL_NAMES))
        bounds.WEIGHT.check("--weights", self.weight)

    @property
    def is_real(self) -> bool:
        """Whether it computes on the CPU."""
        return self.model in REAL_NAMES


@dataclass(frozen=True, kw_only=True)
class SharePlan:
    """Links are as fast as `bandwidths_gbit` says (None: not shaped), or as `ratios` demands."""

    jobs: tuple[Job, ...]
    mode: Mode = Mode.PLAIN
    hosts: int = 4
    bandwidths_gbit: tuple[float | None, ...] = ()
    ratios: tuple[float, ...] = ()
    scale: float = 10.0
    slowdown: float = 1.0
    rounds: int = 4
    lap_s: float = 6.0

    def __post_init__(self) -> None:
        bounds.SCALE.check("--scale", self.scale)
        bounds.SCALE.check("--slowdown", self.slowdown)
        bounds.LAP_S.check("--lap", self.lap_s)
        if self.rounds < 2:
            raise ConfigError(f"--rounds {self.rounds} is not enough: two are needed to see whether they agree")
        self._check_jobs()
        self._check_links()

    def _check_jobs(self) -> None:
        if len(self.jobs) < 2:
            raise ConfigError("--jobs needs two models at least, such as resnet50,vgg19: they are to share")
        if not self.is_real:
            return
        if not all(job.is_real for job in self.jobs):
            raise ConfigError("--jobs: models that compute for real and replayed ones have no device in common")
        if self.scale != 1 or self.slowdown != 1:
            raise ConfigError(f"{self.jobs[0].model} computes for real: leave --scale and --slowdown out")
        cores = len(os.sched_getaffinity(0))
        if self.hosts > cores:
            raise ConfigError(
                f"--hosts {self.hosts}: jobs that compute for real need a core for every host, and {cores} are here"
            )

    def _check_links(self) -> None:
        if self.hosts < 2:
            raise ConfigError(f"--hosts {self.hosts}: at least two are needed to have something to say to each other")
        check_size(self.hosts)
        if bool(self.ratios) is bool(self.bandwidths_gbit):
            raise ConfigError("give either --bandwidth or --ratio")
        if self.ratios and self.is_real:
            raise ConfigError("--ratio is for replayed models: give --bandwidth")
        for ratio in self.ratios:
            bounds.RATIO.check("--ratio", ratio)
        for bandwidth_gbit in self.bandwidths_gbit:
            if (rate := self.link_rate(bandwidth_gbit)) is not None and rate < SLOWEST_BITS_PER_S:
                raise ConfigError(f"too little is left of {bandwidth_gbit:g} Gbit/s to measure: use a smaller --scale")

    @property
    def is_real(self) -> bool:
        return any(job.is_real for job in self.jobs)

    @property
    def arrangements(self) -> tuple[Arrangement, ...]:
        return tuple(one for one in Arrangement if self.is_real or one is not Arrangement.COMPUTE)

    @property
    def lap_count(self) -> int:
        """Of one case: company has one for all, every other arrangement one for each job."""
        return self.rounds * sum(1 if one.is_company else len(self.jobs) for one in self.arrangements)

    @property
    def labels(self) -> tuple[str, ...]:
        """What the jobs are called: their models, with a number where two are the same."""
        models = [job.model for job in self.jobs]
        return tuple(
            model if models.count(model) == 1 else f"{model} {number + 1}" for number, model in enumerate(models)
        )

    def link_rate(self, bandwidth_gbit: float | None) -> float | None:
        """In bits per second, as emulated; None: not shaped."""
        return None if bandwidth_gbit is None else bandwidth_gbit * GIGA / self.scale / self.slowdown

    def assign(self, job: Job, system: str, devices: str) -> Assignment:
        """What a worker is told."""
        return Assignment(
            model=job.model, system=system, scale=self.scale, slowdown=self.slowdown, batch=None, devices=devices
        )
