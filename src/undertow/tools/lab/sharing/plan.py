"""Plan of what `undertow share bench` measures, checked before anything is started.

In: the user's options.  Out: jobs, and the arrangements in which they are measured.
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
    """Extent to which a job hides communication behind its own compute; the value is its workers' system."""

    # Nothing is sent before the end of backward, and backward waits for all results: whatever a step takes in addition
    # to its compute is exposed communication.  Slicing stays on, or one shard would get most of the bytes.
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
    """Plan for jobs that share hosts, at the given `bandwidths_gbit`, or at those that result in the `ratios`."""

    jobs: tuple[Job, ...]
    mode: Mode = Mode.PLAIN
    hosts: int = 4
    bandwidths_gbit: tuple[float | None, ...] = ()
    ratios: tuple[float, ...] = ()
    scale: float = 10.0
    lap_s: float = 6.0

    def __post_init__(self) -> None:
        bounds.SCALE.check("--slowdown", self.slowdown)  # below 1, devices are faster than real ones: for tests
        self._check_jobs()
        self.check(*(job.model for job in self.jobs))
        self._check_links()

    def _check_jobs(self) -> None:
        if len(self.jobs) < 2:
            raise ConfigError("--jobs needs at least two models that share the hosts, such as resnet50,vgg19")
        if not self.is_real:
            return
        if not all(job.is_real for job in self.jobs):
            raise ConfigError("--jobs: models that compute for real cannot share a device with replayed models")
        cores = len(os.sched_getaffinity(0))
        if self.hosts > cores:
            raise ConfigError(
                f"--hosts {self.hosts}: jobs that compute for real need a core for every host; this machine has {cores}"
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
        """Number of laps of one case: jobs in company have one together, and one each in every other arrangement."""
        return self.rounds * sum(1 if one.is_company else len(self.jobs) for one in self.arrangements)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the jobs: their models, with a number where two are the same."""
        models = [job.model for job in self.jobs]
        return tuple(
            model if models.count(model) == 1 else f"{model} {number + 1}" for number, model in enumerate(models)
        )
