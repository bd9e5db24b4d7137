"""What it is worth to run several jobs on the same hosts: one after the other, all at once, crossed over.

In: the jobs, the hosts.  Out: how long a step of each takes in each arrangement.
In a time in which all train,
    gain = sum of (steps of a job * its step alone) / that time
says how much more they do than one after the other, and a job's slow-down is its step in company over its step alone.
The same definitions and names as in `undertow.lab.sharing`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from undertow.bounds import WEIGHT
from undertow.crossover.gain import Load, predict_gain
from undertow.errors import ConfigError
from undertow.sim.sharing_run import Tenant, Trained, train, weigh
from undertow.sim.sweep import Setting
from undertow.sim.topology import Topology
from undertow.watch import NOBODY, Watch


class Arrangement(enum.Enum):
    """The value is its name in the table."""

    ALONE = "one after the other"
    TOGETHER = "together"  # on a device that takes operations as they come
    CROSSOVER = "crossover"


@dataclass(frozen=True, kw_only=True)
class JobFigures:
    """One job, when nobody else is there."""

    model: str
    weight: float
    is_urgent: bool
    compute_s: float  # of a step
    exposed_s: float
    links_s: float  # for so long it fills the busiest host's link

    @property
    def alone_s(self) -> float:
        return self.compute_s + self.exposed_s


@dataclass(frozen=True, kw_only=True)
class Row:
    """One arrangement; lists are in the order of the jobs."""

    arrangement: Arrangement
    steps_s: list[float]
    slow_downs: list[float]
    gain: float


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """All arrangements of the same jobs on the same hosts."""

    system: str
    hosts: int
    bandwidth_gbit: float  # of the slowest link
    jobs: list[JobFigures]
    rows: list[Row]
    ideal: float  # gain with one step of each job, by the formula
    ideal_as_mixed: float  # with as many steps of each as crossover made

    def find(self, arrangement: Arrangement) -> Row:
        return next(row for row in self.rows if row.arrangement is arrangement)


def share(
    tenants: Sequence[Tenant],
    topology: Topology,
    setting: Setting | None = None,
    watch: Watch = NOBODY,
) -> Sharing:
    """Every arrangement.  Tells `weigh_sharing` laps, and leaves it to the caller to expect them."""
    check_tenants(tenants)
    title = f"{tenants[0].schedule.name}, hosts {len(topology.hosts)}"
    jobs = _train_alone(tenants, topology, setting, watch, title)
    rows = [Row(arrangement=Arrangement.ALONE, steps_s=[j.alone_s for j in jobs], slow_downs=[1.0] * len(jobs), gain=1)]
    for arrangement in (Arrangement.TOGETHER, Arrangement.CROSSOVER):
        watch.say(f"{title}: {arrangement.value}")
        has_arbiters = arrangement is Arrangement.CROSSOVER
        trained = train(tenants, topology, setting, has_arbiters=has_arbiters, watch=watch)
        rows.append(_compare(arrangement, trained, jobs))
    mix = [1 / step_s for step_s in rows[-1].steps_s]
    return Sharing(
        system=tenants[0].schedule.name,
        hosts=len(topology.hosts),
        bandwidth_gbit=min(host.bandwidth_bits_per_s for host in topology.hosts) / 1e9,
        jobs=jobs,
        rows=rows,
        ideal=_find_ideal(jobs, [1.0] * len(jobs)),
        ideal_as_mixed=_find_ideal(jobs, mix),
    )


def weigh_sharing(tenants: Sequence[Tenant], topology: Topology, setting: Setting | None = None) -> float:
    """How many laps `share` is: each job alone, if it is not like one before, then all of them twice."""
    different = [number for number, tenant in enumerate(tenants) if not _find_like(tenant, tenants[:number])]
    return weigh(len(different) + 2 * len(tenants), topology, setting)


def check_tenants(tenants: Sequence[Tenant]) -> None:
    """Raises `ConfigError` if these cannot share."""
    if len(tenants) < 2:
        raise ConfigError("sharing takes two jobs at least")
    for tenant in tenants:
        if tenant.schedule.is_ring:
            raise ConfigError(f"{tenant.schedule.name} takes no turns: name a system that does, such as undertow")
        WEIGHT.check_range(f"a weight of {tenant.weight:g}", tenant.weight)


def _train_alone(
    tenants: Sequence[Tenant], topology: Topology, setting: Setting | None, watch: Watch, title: str
) -> list[JobFigures]:
    runs: list[tuple[Tenant, Trained]] = []
    for tenant in tenants:
        like = _find_like(tenant, [before for before, _ in runs])
        if like:
            trained = runs[like[0]][1]
        else:
            watch.say(f"{title}: {tenant.subject.name} alone")
            trained = train([tenant], topology, setting, has_arbiters=False, watch=watch)
        runs.append((tenant, trained))
    return [
        JobFigures(
            model=tenant.subject.name,
            weight=tenant.weight,
            is_urgent=tenant.is_urgent,
            compute_s=run.compute_s[0],
            exposed_s=max(0.0, run.steps_s[0] - run.compute_s[0]),
            links_s=run.links_s,
        )
        for tenant, run in runs
    ]


def _find_like(tenant: Tenant, others: Sequence[Tenant]) -> list[int]:
    """Which of the others train the same in the same way: terms do not matter to one that is alone."""
    return [
        number
        for number, other in enumerate(others)
        if (other.subject, other.schedule) == (tenant.subject, tenant.schedule)
    ]


def _compare(arrangement: Arrangement, trained: Trained, jobs: Sequence[JobFigures]) -> Row:
    slow_downs = [step_s / job.alone_s for step_s, job in zip(trained.steps_s, jobs, strict=True)]
    gain = sum(1 / slow_down for slow_down in slow_downs)
    return Row(arrangement=arrangement, steps_s=trained.steps_s, slow_downs=slow_downs, gain=gain)


def _find_ideal(jobs: Sequence[JobFigures], mix: Sequence[float]) -> float:
    """With so many steps of each job."""
    loads = [Load(job.compute_s, job.exposed_s, job.links_s) for job in jobs]
    return predict_gain([load.times(count) for load, count in zip(loads, mix, strict=True)])
