"""Simulated gain of several jobs on the same hosts: one after the other, all at once, with crossover.

In: the jobs, the hosts.  Out: the time of a step of each job in each arrangement.
While all jobs train, the work that they do, relative to one job after the other, is
    gain = sum over all jobs of (number of steps * time of a step alone) / elapsed time
A job's slow-down is its step beside the others over its step alone.  `undertow.tools.lab.sharing` measures the same
figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from undertow.bounds import WEIGHT
from undertow.crossover.arbiter_state import MOST_JOBS
from undertow.crossover.gain import Load, predict_gain
from undertow.errors import ConfigError
from undertow.observe.report.shared_jobs import Arrangement, SharingJob, SharingRow
from undertow.progress import SILENT, Progress
from undertow.tools.sim.sharing_run import SharedRun, Tenant, train, weigh
from undertow.tools.sim.sweep import Setting
from undertow.tools.sim.topology import Topology


class JobFigures(SharingJob, frozen=True, kw_only=True):
    """Figures of one simulated job that trains alone."""

    links_s: float  # on the busiest host

    @property
    def alone_s(self) -> float:
        return self.compute_s + self.exposed_s


class Row(SharingRow, frozen=True, kw_only=True):
    """Figures of one simulated arrangement."""

    gain: float


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of all arrangements of the same jobs on the same hosts."""

    system: str
    hosts: int
    bandwidth_gbit: float  # of the slowest link
    jobs: list[JobFigures]
    rows: list[Row]
    ideal: float  # gain by the formula, for one step of each job
    ideal_as_mixed: float  # for as many steps of each job as crossover made

    def find(self, arrangement: Arrangement) -> Row:
        return next(row for row in self.rows if row.arrangement == arrangement.value)


def share(
    tenants: Sequence[Tenant],
    topology: Topology,
    setting: Setting | None = None,
    progress: Progress = SILENT,
) -> Sharing:
    """Simulate every arrangement.  Advances by `weigh_sharing` units; the caller announces them with `expect`."""
    check_tenants(tenants)
    title = f"{tenants[0].schedule.name}, hosts {len(topology.hosts)}"
    jobs = _train_alone(tenants, topology, setting, progress, title)
    alone = Arrangement.ALONE.value
    rows = [Row(arrangement=alone, steps_s=[j.alone_s for j in jobs], slow_downs=[1.0] * len(jobs), gain=1)]
    for arrangement in (Arrangement.TOGETHER, Arrangement.CROSSOVER):
        progress.say(f"{title}: {arrangement.value}")
        has_arbiters = arrangement is Arrangement.CROSSOVER
        trained = train(tenants, topology, setting, has_arbiters=has_arbiters, progress=progress)
        rows.append(_compare(arrangement, trained, jobs))
    loads = [Load(job.compute_s, job.exposed_s, job.links_s) for job in jobs]
    return Sharing(
        system=tenants[0].schedule.name,
        hosts=len(topology.hosts),
        bandwidth_gbit=min(host.bandwidth_bits_per_s for host in topology.hosts) / 1e9,
        jobs=jobs,
        rows=rows,
        ideal=predict_gain(loads),
        ideal_as_mixed=predict_gain(loads, [1 / step_s for step_s in rows[-1].steps_s]),
    )


def weigh_sharing(tenants: Sequence[Tenant], topology: Topology, setting: Setting | None = None) -> float:
    """Return the units of progress of `share`: each distinct job alone, then all of them twice."""
    distinct = {_find_first_like(tenant, tenants) for tenant in tenants}
    return weigh(len(distinct) + 2 * len(tenants), topology, setting)


def check_tenants(tenants: Sequence[Tenant]) -> None:
    """Raise `ConfigError` if these jobs cannot share."""
    if len(tenants) < 2:
        raise ConfigError("sharing takes at least two jobs")
    if len(tenants) > MOST_JOBS:
        raise ConfigError(f"{len(tenants)} jobs cannot share a device: at most {MOST_JOBS} can")
    for tenant in tenants:
        if tenant.schedule.is_ring:
            raise ConfigError(f"{tenant.schedule.name} takes no turns: name a system that does, such as undertow")
        WEIGHT.check_range(f"a weight of {tenant.weight:g}", tenant.weight)


def _train_alone(
    tenants: Sequence[Tenant], topology: Topology, setting: Setting | None, progress: Progress, title: str
) -> list[JobFigures]:
    firsts = [_find_first_like(tenant, tenants) for tenant in tenants]
    runs: dict[int, SharedRun] = {}
    for first in sorted(set(firsts)):
        progress.say(f"{title}: {tenants[first].subject.name} alone")
        runs[first] = train([tenants[first]], topology, setting, has_arbiters=False, progress=progress)
    alone = [runs[first] for first in firsts]
    return [
        JobFigures(
            model=tenant.subject.name,
            weight=tenant.weight,
            is_urgent=tenant.is_urgent,
            compute_s=run.compute_s[0],
            exposed_s=max(0.0, run.steps_s[0] - run.compute_s[0]),
            links_s=run.links_s,
        )
        for tenant, run in zip(tenants, alone, strict=True)
    ]


def _find_first_like(tenant: Tenant, tenants: Sequence[Tenant]) -> int:
    """Return the first job with the same model and schedule: alone, their runs are equal."""
    like = (tenant.subject, tenant.schedule)
    return next(number for number, other in enumerate(tenants) if (other.subject, other.schedule) == like)


def _compare(arrangement: Arrangement, trained: SharedRun, jobs: Sequence[JobFigures]) -> Row:
    slow_downs = [step_s / job.alone_s for step_s, job in zip(trained.steps_s, jobs, strict=True)]
    gain = sum(1 / slow_down for slow_down in slow_downs)
    return Row(arrangement=arrangement.value, steps_s=trained.steps_s, slow_downs=slow_downs, gain=gain)
