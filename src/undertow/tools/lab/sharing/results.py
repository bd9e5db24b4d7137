"""Results of `undertow share bench`: the contents of its JSON file, and a table for a terminal.

All times are seconds per step, without the slowdown.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.table import Table

from undertow.crossover.gain import EXPLAIN_GAIN
from undertow.observe.report.columns import UNSHAPED
from undertow.observe.report.machine import RunRecord
from undertow.observe.report.safe_text import Text
from undertow.observe.report.shared_jobs import SharingJob, SharingRow, start_sharing_table
from undertow.units import ABSENT, GIGA, format_bandwidth, format_figure, format_ms, format_ms_figure


class JobFigures(SharingJob, frozen=True, kw_only=True):
    """Figures of one job that trains alone; c is nominal, or measured where compute is real."""

    label: str
    alone_s: float  # T = c + m
    exposed_over_compute: float  # m / c
    turns_overhead: float  # by how much taking turns lengthens a step alone, as a fraction


class Row(SharingRow, frozen=True, kw_only=True):
    """Figures of one arrangement: medians of its laps or rounds; None where a figure has no meaning."""

    gain_low: float | None = None  # in the worst round, and in the best
    gain_high: float | None = None
    ideal: float | None = None  # with one step of each job, if device and links never idled needlessly
    ideal_as_mixed: float | None = None  # with the measured mix of steps
    cpu: float = 0.0  # seconds of processor time per second, all workers together
    laps_s: list[list[float]] = msgspec.field(default_factory=list)  # steps_s of each lap

    @property
    def of_ideal(self) -> float | None:
        return None if self.gain is None or self.ideal is None else self.gain / self.ideal


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the same jobs on links of one speed."""

    mode: str
    system: str
    hosts: int
    bandwidth_gbit: float | None  # nominal, before scaling; None: not shaped
    ratio: float | None  # m / c of the first job in plain mode, as requested
    scale: float
    slowdown: float
    jobs: list[JobFigures]
    rows: list[Row]


class ShareResults(RunRecord, frozen=True, kw_only=True):
    """Results of a whole bench, and what is needed to repeat it."""

    cases: list[Case]
    notes: list[str]


_FIGURES = ("gain", "worst–best\nround", "ideal", "% of\nideal", "ideal of\nthis mix", "CPU s/s")


def make_share_table(case: Case) -> Table:
    """Return the table of one case, with the figures of each job alone below it."""
    names = [job.label for job in case.jobs]
    table = start_sharing_table(describe(case), [*map(_explain, case.jobs), EXPLAIN_GAIN], names, _FIGURES)
    for row in case.rows:
        table.add_row(*map(Text, _show(row)))
    return table


def describe(case: Case) -> str:
    """Return the title: jobs, mode, hosts, links, scale and slowdown."""
    link = UNSHAPED if case.bandwidth_gbit is None else format_bandwidth(case.bandwidth_gbit * GIGA)
    stretch = [f"scale {case.scale:g}"] * (case.scale != 1) + [f"slowdown {case.slowdown:g}"] * (case.slowdown != 1)
    jobs = " and ".join(job.label for job in case.jobs)
    return ", ".join([jobs, case.mode, f"{case.hosts} hosts", link, *stretch])


def _show(row: Row) -> Iterator[str]:
    yield row.arrangement
    for step_s, slow_down in zip(row.steps_s, row.slow_downs, strict=True):
        yield format_ms_figure(step_s)
        yield f"{slow_down:.3f}"
    yield _show_ratio(row.gain)
    yield ABSENT if row.gain_low is None else f"{_show_ratio(row.gain_low)}–{_show_ratio(row.gain_high)}"
    yield _show_ratio(row.ideal)
    yield ABSENT if row.of_ideal is None else f"{100 * row.of_ideal:.1f}"
    yield _show_ratio(row.ideal_as_mixed)
    yield format_figure(row.cpu)


def _show_ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}"


def _explain(job: JobFigures) -> str:
    links = "" if job.links_s is None else f", its bytes fill a link for {format_ms(job.links_s)}"
    return (
        f"{job.describe(job.label)} (m/c {job.exposed_over_compute:.3f}){links}; taking turns alone costs "
        f"{100 * job.turns_overhead:+.2f} %"
    )
