"""The fleets of a share bench: every job three times, so that nobody has to be started between two laps.

In: a plan, a network.  Out: for each arrangement one fleet per job; inside of the block all of them live.
Jobs without turns are alone or together with the same workers.  Those that take turns have an arbiter on every
host in common.  A job that takes turns alone has arbiters of its own: at the others' it would be in company even
while those have nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from undertow.lab.bench.fleet import Fleet
from undertow.lab.bench.messages import Ready
from undertow.lab.bench.series import COMPUTE
from undertow.lab.network import Network
from undertow.lab.sharing.arbiters import Environments, check_arbiters, open_arbiters
from undertow.lab.sharing.plan import Arrangement, Job, SharePlan
from undertow.lab.systems import find_system
from undertow.watch import Watch


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where workers live."""

    network: Network
    environ: Mapping[str, str]
    devices: str  # a folder
    watch: Watch

    def open_fleet(self, plan: SharePlan, job: Job, system: str, by_host: Environments = ()) -> Fleet:
        environ = {**self.environ, "UNDERTOW_SHARE": "on" if by_host else "off"}
        assignment = plan.assign(job, system, self.devices)
        return Fleet(self.network, find_system(system), assignment, environ, by_host=by_host)


@dataclass(frozen=True, kw_only=True)
class Fleets:
    by_arrangement: Mapping[Arrangement, Sequence[Fleet]]  # each in the order of the jobs
    ready: Sequence[Ready]  # of each job
    arbiters: Sequence[tuple[Environments, int]]  # where they are, and how many jobs each of them has

    def check_turns(self) -> None:
        """Raises `LabError` if somebody who should take turns does not."""
        for environments, jobs in self.arbiters:
            check_arbiters(environments, jobs)


@contextmanager
def open_fleets(plan: SharePlan, site: Site) -> Iterator[Fleets]:
    """One after the other, with nobody else on the links."""
    with ExitStack() as stack:
        system = plan.mode.value
        plain = [_start(stack, site, site.open_fleet(plan, job, system), plan.labels) for job in plan.jobs]
        *own, common = (stack.enter_context(open_arbiters(plan.hosts, site.environ)) for _ in (*plan.jobs, None))
        turns, shared = (
            [
                _start(stack, site, site.open_fleet(plan, job, system, describe_terms(job, label, at)), plan.labels)
                for job, label, at in zip(plan.jobs, plan.labels, arbiters, strict=True)
            ]
            for arbiters in (own, [common] * len(plan.jobs))
        )
        by_arrangement = {
            Arrangement.ALONE: plain,
            Arrangement.TURNS: turns,
            Arrangement.TOGETHER: plain,
            Arrangement.CROSSOVER: shared,
        }
        if plan.is_real:
            local = [_start(stack, site, site.open_fleet(plan, job, COMPUTE), plan.labels) for job in plan.jobs]
            by_arrangement[Arrangement.COMPUTE] = local
        yield Fleets(
            by_arrangement={one: [fleet for fleet, _ in started] for one, started in by_arrangement.items()},
            ready=[ready for _, ready in plain],
            arbiters=[*((at, 1) for at in own), (common, len(plan.jobs))],
        )


def describe_terms(job: Job, label: str, arbiters: Environments) -> list[dict[str, str]]:
    """For the workers of a job that takes turns: the variables of each host."""
    terms = {
        "UNDERTOW_SHARE_NAME": label,
        "UNDERTOW_SHARE_WEIGHT": str(job.weight),
        "UNDERTOW_SHARE_URGENT": "on" if job.is_urgent else "off",
    }
    return [{**terms, **own} for own in arbiters]


def _start(stack: ExitStack, site: Site, fleet: Fleet, labels: Sequence[str]) -> tuple[Fleet, Ready]:
    site.watch.say(f"starting {', '.join(labels)}")
    stack.enter_context(fleet)
    ready = fleet.wait_until_ready()
    site.watch.lap()
    return fleet, ready
