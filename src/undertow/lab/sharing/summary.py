"""From heats to a case: the rows of the table; pure.

In: the laps of every arrangement.  Out: each job's times alone, and what each arrangement gains.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from undertow.lab.bench.messages import Ready
from undertow.lab.sharing.figures import Measured, find_gains, find_ideal, find_middle, make_load
from undertow.lab.sharing.heats import Heat
from undertow.lab.sharing.plan import Arrangement, SharePlan
from undertow.lab.sharing.results import Case, JobFigures, Row
from undertow.plan.cluster import PAYLOAD_SHARE


def summarise(
    plan: SharePlan,
    heats: Sequence[Heat],
    ready: Sequence[Ready],
    *,
    bandwidth_gbit: float | None,
    ratio: float | None,
) -> Case:
    summary = _Summary(plan, heats, ready, plan.link_rate(bandwidth_gbit))
    return Case(
        mode=plan.mode.name.lower(),
        system=plan.mode.value,
        hosts=plan.hosts,
        bandwidth_gbit=bandwidth_gbit,
        ratio=ratio,
        scale=plan.scale,
        slowdown=plan.slowdown,
        jobs=summary.jobs,
        rows=summary.rows,
    )


class _Summary:
    """Works with times as they were measured; what it gives away is without the slowdown."""

    def __init__(
        self, plan: SharePlan, heats: Sequence[Heat], ready: Sequence[Ready], rate_bits_per_s: float | None
    ) -> None:
        self._plan = plan
        self._laps: dict[Arrangement, list[list[Measured]]] = {}  # of each job, or of all together
        for heat in heats:
            self._laps.setdefault(heat.arrangement, []).append(heat.laps)
        self._alone_s = self._find_steps(Arrangement.ALONE)
        nominal_s = [one.compute_s for one in ready if one.compute_s is not None]
        self._compute_s = tuple(nominal_s) if len(nominal_s) == len(ready) else self._find_steps(Arrangement.COMPUTE)
        self._links_s = [self._find_links_s(laps, rate_bits_per_s) for laps in self._laps[Arrangement.ALONE]]
        self._loads = [
            make_load(compute_s=compute_s, alone_s=alone_s, links_s=links_s or 0.0)
            for compute_s, alone_s, links_s in zip(self._compute_s, self._alone_s, self._links_s, strict=True)
        ]

    @property
    def rows(self) -> list[Row]:
        return [self._make_row(arrangement) for arrangement in self._laps]

    @property
    def jobs(self) -> list[JobFigures]:
        turns_s, slowdown = self._find_steps(Arrangement.TURNS), self._plan.slowdown
        return [
            JobFigures(
                model=job.model,
                label=label,
                weight=job.weight,
                is_urgent=job.is_urgent,
                compute_s=compute_s / slowdown,
                alone_s=alone_s / slowdown,
                exposed_s=(alone_s - compute_s) / slowdown,
                exposed_over_compute=alone_s / compute_s - 1,
                links_s=None if links_s is None else links_s / slowdown,
                turns_overhead=turn_s / alone_s - 1,
            )
            for job, label, compute_s, alone_s, links_s, turn_s in zip(
                self._plan.jobs, self._plan.labels, self._compute_s, self._alone_s, self._links_s, turns_s, strict=True
            )
        ]

    @staticmethod
    def _find_links_s(laps: Sequence[Measured], rate_bits_per_s: float | None) -> float | None:
        """How long a step's bytes fill a link; None where links are not shaped."""
        if rate_bits_per_s is None:
            return None
        return statistics.median(lap.sent_bytes for lap in laps) * 8 / (rate_bits_per_s * PAYLOAD_SHARE)

    def _find_steps(self, arrangement: Arrangement) -> tuple[float, ...]:
        """Of each job, in this arrangement."""
        return tuple(step_s for laps in self._laps[arrangement] for step_s in find_middle(laps))

    def _make_row(self, arrangement: Arrangement) -> Row:
        steps_s, groups, slowdown = self._find_steps(arrangement), self._laps[arrangement], self._plan.slowdown
        by_lap = [[step_s for lap in laps for step_s in lap.steps_s] for laps in zip(*groups, strict=True)]
        row = Row(
            arrangement=arrangement.value,
            steps_s=[step_s / slowdown for step_s in steps_s],
            slow_downs=[step_s / alone_s for step_s, alone_s in zip(steps_s, self._alone_s, strict=True)],
            gain=1.0 if arrangement is Arrangement.ALONE else None,
            cpu=statistics.fmean(lap.cpu for laps in groups for lap in laps),
            laps_s=[[step_s / slowdown for step_s in lap] for lap in by_lap],
        )
        return self._compare(row, groups[0], steps_s) if arrangement.is_company else row

    def _compare(self, row: Row, laps: Sequence[Measured], steps_s: Sequence[float]) -> Row:
        """With what the jobs do one after the other."""
        gains = find_gains(self._laps[Arrangement.ALONE], laps)
        mix = [1 / step_s for step_s in steps_s]
        return msgspec.structs.replace(
            row,
            gain=statistics.median(gains),
            gain_low=min(gains),
            gain_high=max(gains),
            ideal=find_ideal(self._loads),
            ideal_as_mixed=find_ideal(self._loads, mix=mix),
        )
