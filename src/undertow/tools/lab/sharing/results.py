"""Results of `undertow share bench`: the contents of its JSON file, and a table for a terminal.

All times are seconds per step, without the slowdown.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from rich.table import Table

from undertow.observe.report.columns import describe_link
from undertow.observe.report.machine import RunRecord
from undertow.observe.report.shared_jobs import SharingJob, SharingRow, make_sharing_table, show_ratio
from undertow.units import ABSENT, format_change, format_figure, format_ms, format_percent_figure


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


_FIGURES: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("worst–best\nround", lambda row: _show_range(row)),
    ("ideal", lambda row: show_ratio(row.ideal)),
    ("% of\nideal", lambda row: ABSENT if row.of_ideal is None else format_percent_figure(row.of_ideal, 1)),
    ("ideal of\nthis mix", lambda row: show_ratio(row.ideal_as_mixed)),
    ("CPU s/s", lambda row: format_figure(row.cpu)),
)


def make_share_table(case: Case) -> Table:
    """Return the table of one case, with the figures of each job alone below it."""
    names = [job.label for job in case.jobs]
    return make_sharing_table(describe(case), map(_explain, case.jobs), names, case.rows, _FIGURES)


def describe(case: Case) -> str:
    """Return the title: jobs, mode, hosts, links, scale and slowdown."""
    stretch = [f"scale {case.scale:g}"] * (case.scale != 1) + [f"slowdown {case.slowdown:g}"] * (case.slowdown != 1)
    jobs = " and ".join(job.label for job in case.jobs)
    return ", ".join([jobs, case.mode, f"{case.hosts} hosts", describe_link(case.bandwidth_gbit), *stretch])


def _show_range(row: Row) -> str:
    return ABSENT if row.gain_low is None else f"{show_ratio(row.gain_low)}–{show_ratio(row.gain_high)}"


def _explain(job: JobFigures) -> str:
    links = "" if job.links_s is None else f", its bytes fill a link for {format_ms(job.links_s)}"
    return (
        f"{job.describe(job.label)} (m/c {job.exposed_over_compute:.3f}){links}; taking turns alone costs "
        f"{format_change(job.turns_overhead, 2)}"
    )
