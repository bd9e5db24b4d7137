"""`undertow simulate --share`: simulates several jobs on the same hosts, prints tables and writes a file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from undertow.cli.progress import open_console, open_progress
from undertow.cli.results import read_command_line, read_terms, split_list
from undertow.crossover.gain import EXPLAIN_GAIN
from undertow.errors import ConfigError
from undertow.launch.launcher_output import notify
from undertow.observe.report.machine import RunRecord, describe_run
from undertow.observe.report.points import write_results
from undertow.observe.report.safe_text import Text
from undertow.observe.report.shared_jobs import Arrangement, start_sharing_table
from undertow.tools.sim.schedules import Schedule
from undertow.tools.sim.sharing import Row, Sharing, check_tenants, share, weigh_sharing
from undertow.tools.sim.sharing_run import Tenant
from undertow.tools.sim.subject import Subject, find_subject
from undertow.tools.sim.sweep import Setting
from undertow.tools.sim.topology import Topology
from undertow.units import ABSENT, format_bandwidth, format_ms, format_ms_figure

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
    models = " and ".join(job.model for job in case.jobs)
    link = format_bandwidth(case.bandwidth_gbit * 1e9)
    title = f"{models}, {case.system}, {case.hosts} host{'s' * (case.hosts > 1)}, {link}, simulated"
    table = start_sharing_table(title, _explain(case), [job.model for job in case.jobs], ("gain", "ideal"))
    for row in case.rows:
        table.add_row(*map(Text, _show(row, case)))
    return table


def _show(row: Row, case: Sharing) -> Iterator[str]:
    yield row.arrangement
    for step_s, slow_down in zip(row.steps_s, row.slow_downs, strict=True):
        yield format_ms_figure(step_s) if math.isfinite(step_s) else ABSENT
        yield f"{slow_down:.2f}" if math.isfinite(slow_down) else ABSENT
    yield f"{row.gain:.3f}"
    yield f"{case.ideal:.3f}" if row.arrangement == Arrangement.CROSSOVER.value else ABSENT


def _explain(case: Sharing) -> Iterator[str]:
    for job in case.jobs:
        yield f"{job.describe(job.model)} alone; its bytes fill a link for {format_ms(job.links_s)}"
    yield EXPLAIN_GAIN
    if abs(case.ideal_as_mixed / case.ideal - 1) > CLOSE:
        yield f"with as many steps of each job as crossover makes, the ideal is {case.ideal_as_mixed:.3f}"
