"""`undertow simulate --share`: simulates several jobs on the same hosts, prints tables and writes a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from undertow.cli.progress import open_console, open_progress
from undertow.cli.results import read_command_line, read_terms, split_list
from undertow.errors import ConfigError
from undertow.launch.launcher_output import notify
from undertow.observe.report.columns import describe_link
from undertow.observe.report.machine import RunRecord, describe_run
from undertow.observe.report.points import write_results
from undertow.observe.report.shared_jobs import Arrangement, make_sharing_table, show_ratio
from undertow.tools.sim.schedules import Schedule
from undertow.tools.sim.sharing import Row, Sharing, check_tenants, share, weigh_sharing
from undertow.tools.sim.sharing_run import Tenant
from undertow.tools.sim.subject import Subject, find_subject
from undertow.tools.sim.sweep import Setting
from undertow.tools.sim.topology import Topology
from undertow.units import format_ms, format_quantity

CLOSE = 0.005  # ideals that differ by less than this fraction are shown as one


class SimulatedSharing(RunRecord, frozen=True, kw_only=True):
    """Results of a simulation of shared hosts, in the format of its JSON file."""

    origin: str = "simulated"
    cases: list[Sharing]


def read_tenants(
    subject: Subject, others: str, schedules: Sequence[Schedule], *, weights: str | None, urgent: int | None
) -> list[list[Tenant]]:
    """Return the jobs that share, once for each schedule."""
    names = split_list(others)
    if not names:
        raise ConfigError("--share is empty: name the models of the jobs that share the hosts with --model")
    subjects = [subject, *map(find_subject, names)]
    terms = read_terms(weights, urgent, [one.name for one in subjects])
    job_lists = [
        [
            Tenant(subject=one, schedule=schedule, weight=weight, is_urgent=is_urgent)
            for one, (weight, is_urgent) in zip(subjects, terms, strict=True)
        ]
        for schedule in schedules
    ]
    for tenants in job_lists:
        check_tenants(tenants)
    return job_lists


def show_sharing(
    job_lists: Sequence[Sequence[Tenant]], topologies: Sequence[Topology], setting: Setting, out: Path | None
) -> int:
    """Simulate each system on each cluster, and show one table for each."""
    runs = list(itertools.product(topologies, job_lists))
    with open_progress() as progress:
        progress.expect(sum(weigh_sharing(tenants, topology, setting) for topology, tenants in runs))
        cases = [share(tenants, topology, setting, progress) for topology, tenants in runs]
    console = open_console()
    for case in cases:
        console.print(make_table(case))
    if out is not None:
        write_results(SimulatedSharing(**describe_run(read_command_line()), cases=cases), out)
        notify(f"written: {out}")
    return 0


def make_table(case: Sharing) -> Table:
    models = [job.model for job in case.jobs]
    link, hosts = describe_link(case.bandwidth_gbit), format_quantity(case.hosts, "host")
    title = f"{' and '.join(models)}, {case.system}, {hosts}, {link}, simulated"

    def show_ideal(row: Row) -> str:
        return show_ratio(case.ideal if row.arrangement == Arrangement.CROSSOVER.value else None)

    return make_sharing_table(title, _explain(case), models, case.rows, [("ideal", show_ideal)])


def _explain(case: Sharing) -> Iterator[str]:
    for job in case.jobs:
        yield f"{job.describe(job.model)} alone; its bytes fill a link for {format_ms(job.links_s)}"
    if abs(case.ideal_as_mixed / case.ideal - 1) > CLOSE:
        yield f"with as many steps of each job as crossover makes, the ideal is {show_ratio(case.ideal_as_mixed)}"
