"""`undertow simulate --share`: several jobs on the same hosts, as tables and as a file."""

from __future__ import annotations

import itertools
import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.table import Table

from undertow.bounds import WEIGHT
from undertow.cli.progress import open_console, open_watch
from undertow.cli.quantities import parse_numbers
from undertow.crossover.gain import EXPLAIN_GAIN
from undertow.errors import ConfigError
from undertow.files import write_file
from undertow.lab.bandwidth import format_bandwidth
from undertow.launch.speech import notify
from undertow.report.columns import ABSENT, show_ms
from undertow.report.points import describe_machine, list_versions
from undertow.report.safe_text import Text
from undertow.report.table import start_table
from undertow.sim.schedules import Schedule
from undertow.sim.sharing import Arrangement, JobFigures, Row, Sharing, check_tenants, share, weigh_sharing
from undertow.sim.sharing_run import Tenant
from undertow.sim.subject import Subject, find_subject
from undertow.sim.sweep import Setting
from undertow.sim.topology import Topology

FORMAT = 1
CLOSE = 0.005  # the same, as far as anybody cares


def read_tenants(
    subject: Subject, others: str, schedules: Sequence[Schedule], *, weights: str | None, urgent: int | None
) -> list[list[Tenant]]:
    """The jobs that share, under each of the schedules."""
    names = [part.strip() for part in others.split(",") if part.strip()]  # the same one may come twice
    if not names:
        raise ConfigError("--share is empty: name the models of the jobs that share the hosts with --model")
    subjects = [subject, *map(find_subject, names)]
    shares = _read_weights(weights, len(subjects))
    if urgent is not None and not 0 <= urgent < len(subjects):
        raise ConfigError(f"--urgent {urgent}: the jobs are 0, which is --model or --profile, to {len(subjects) - 1}")
    crowds = [
        [
            Tenant(subject=one, schedule=schedule, weight=weight, is_urgent=number == urgent)
            for number, (one, weight) in enumerate(zip(subjects, shares, strict=True))
        ]
        for schedule in schedules
    ]
    for tenants in crowds:
        check_tenants(tenants)
    return crowds


def _read_weights(text: str | None, jobs: int) -> list[float]:
    if text is None:
        return [1.0] * jobs
    weights = parse_numbers(text, "--weights", WEIGHT)
    if len(weights) != jobs:
        raise ConfigError(f"--weights has {len(weights)} numbers for {jobs} jobs: give one for each, --model's first")
    return list(weights)


def show_sharing(
    crowds: Sequence[Sequence[Tenant]], topologies: Sequence[Topology], setting: Setting, out: Path | None
) -> int:
    """One table for each system on each cluster."""
    asked = list(itertools.product(topologies, crowds))
    with open_watch() as watch:
        watch.expect(sum(weigh_sharing(tenants, topology, setting) for topology, tenants in asked))
        cases = [share(tenants, topology, setting, watch) for topology, tenants in asked]
    console = open_console()
    for case in cases:
        console.print(make_table(case))
    if out is not None:
        _write(cases, out)
    return 0


def make_table(case: Sharing) -> Table:
    """One row for each arrangement."""
    who = " and ".join(job.model for job in case.jobs)
    link = format_bandwidth(case.bandwidth_gbit * 1e9)
    title = f"{who}, {case.system}, {case.hosts} host{'s' * (case.hosts > 1)}, {link}, simulated"
    table = start_table(title, "\n".join(_explain(case)))
    table.add_column("arrangement", no_wrap=True)
    for heading in (*(h for job in case.jobs for h in (f"{job.model}\nstep, ms", "×\nalone")), "gain", "ideal"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in case.rows:
        table.add_row(*map(Text, _show(row, case)))
    return table


def _show(row: Row, case: Sharing) -> Iterator[str]:
    yield row.arrangement.value
    for step_s, slow_down in zip(row.steps_s, row.slow_downs, strict=True):
        yield show_ms(step_s) if math.isfinite(step_s) else ABSENT
        yield f"{slow_down:.2f}" if math.isfinite(slow_down) else ABSENT
    yield f"{row.gain:.3f}"
    yield f"{case.ideal:.3f}" if row.arrangement is Arrangement.CROSSOVER else ABSENT


def _explain(case: Sharing) -> Iterator[str]:
    yield from map(_describe, case.jobs)
    yield EXPLAIN_GAIN
    if abs(case.ideal_as_mixed / case.ideal - 1) > CLOSE:
        yield f"with as many steps of each as crossover makes the ideal is {case.ideal_as_mixed:.3f}"


def _describe(job: JobFigures) -> str:
    terms = f", weight {job.weight:g}" * (job.weight != 1) + ", urgent" * job.is_urgent
    return (
        f"{job.model}{terms}: computes {show_ms(job.compute_s)} ms and waits {show_ms(job.exposed_s)} ms alone; its "
        f"bytes fill a link for {show_ms(job.links_s)} ms"
    )


def _write(cases: Sequence[Sharing], out: Path) -> None:
    data = msgspec.json.encode(
        {
            "format": FORMAT,
            "machine": describe_machine(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": list_versions(),
            "command": shlex.join(["undertow", *sys.argv[1:]]),
            "origin": "simulated",
            "cases": cases,
        }
    )
    try:
        write_file(out, msgspec.json.format(data, indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"results cannot be written to {out}: {error.strerror}") from None
    notify(f"written: {out}")
