"""What `undertow share bench` is to measure, checked before anything is started.

In: what the user asked for.  Out: jobs, the arrangements that they are measured in, and how each worker is told.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass

from undertow import bounds
from undertow.errors import ConfigError
from undertow.observe.report.shared_jobs import Arrangement
from undertow.tools.lab.bench.series import BenchPlan, check_model
from undertow.tools.lab.real import REAL_NAMES


class Mode(enum.Enum):
    """Share of its communication that a job hides by itself; the value names the system of its workers."""

    # Nothing leaves before the end of backward, and backward waits for all of it: what a step takes longer than its
    # computing is communication that nothing covers.  Slices stay, or one shard would get most of the bytes.
    PLAIN = "undertow-no-wait-free-no-gate-no-hybrid"
    EVERYTHING = "undertow"


@dataclass(frozen=True, kw_only=True)
class Job:
    model: str
    weight: float = 1.0
    is_urgent: bool = False

    def __post_init__(self) -> None:
        check_model(self.model)
        bounds.WEIGHT.check("--weights", self.weight)

    @property
    def is_real(self) -> bool:
        """Whether it computes on the CPU."""
        return self.model in REAL_NAMES


@dataclass(frozen=True, kw_only=True)
class SharePlan(BenchPlan):
    """Jobs that share hosts.  Links are as fast as `bandwidths_gbit` says, or as `ratios` demands."""

    jobs: tuple[Job, ...]
    mode: Mode = Mode.PLAIN
    hosts: int = 4
    bandwidths_gbit: tuple[float | None, ...] = ()
    ratios: tuple[float, ...] = ()
    scale: float = 10.0
    lap_s: float = 6.0

    def __post_init__(self) -> None:
        bounds.SCALE.check("--slowdown", self.slowdown)
        self.check()
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
        if bool(self.ratios) is bool(self.bandwidths_gbit):
            raise ConfigError("give either --bandwidth or --ratio")
        if self.ratios and self.is_real:
            raise ConfigError("--ratio is for replayed models: give --bandwidth")
        for ratio in self.ratios:
            bounds.RATIO.check("--ratio", ratio)

    @property
    def is_real(self) -> bool:
        return any(job.is_real for job in self.jobs)

    @property
    def arrangements(self) -> tuple[Arrangement, ...]:
        return tuple(one for one in Arrangement if self.is_real or one is not Arrangement.COMPUTE)

    @property
    def lap_count(self) -> int:
        """Number of laps of one case: jobs in company have one together, in every other arrangement one each."""
        return self.rounds * sum(1 if one.is_company else len(self.jobs) for one in self.arrangements)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the jobs: their models, with a number where two are the same."""
        models = [job.model for job in self.jobs]
        return tuple(
            model if models.count(model) == 1 else f"{model} {number + 1}" for number, model in enumerate(models)
        )
