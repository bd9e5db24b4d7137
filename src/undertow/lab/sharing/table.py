"""The table of `undertow share bench` for a terminal: one row for each arrangement.

In: a case.  Out: a rich table.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from undertow.crossover.gain import EXPLAIN_GAIN
from undertow.lab.bandwidth import format_bandwidth
from undertow.lab.sharing.results import Case, Row
from undertow.report.columns import ABSENT, UNSHAPED, show_figure, show_ms
from undertow.report.safe_text import Text
from undertow.report.table import start_table

_GIGA = 1e9
_FIGURES = ("gain", "worst–best\nround", "ideal", "% of\nideal", "ideal of\nthis mix", "CPU s/s")


def make_share_table(case: Case) -> Table:
    table = start_table(describe(case), "\n".join(_explain(case)))
    table.add_column("arrangement", no_wrap=True)
    for heading in (*(h for job in case.jobs for h in (f"{job.label}\nstep, ms", "×\nalone")), *_FIGURES):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in case.rows:
        table.add_row(*map(Text, _show(row)))
    return table


def describe(case: Case) -> str:
    link = UNSHAPED if case.bandwidth_gbit is None else format_bandwidth(case.bandwidth_gbit * _GIGA)
    stretch = [f"scale {case.scale:g}"] * (case.scale != 1) + [f"slowdown {case.slowdown:g}"] * (case.slowdown != 1)
    who = " and ".join(job.label for job in case.jobs)
    return ", ".join([who, case.mode, f"{case.hosts} hosts", link, *stretch])


def _show(row: Row) -> Iterator[str]:
    yield row.arrangement
    for step_s, slow_down in zip(row.steps_s, row.slow_downs, strict=True):
        yield show_ms(step_s)
        yield f"{slow_down:.3f}"
    yield _show_ratio(row.gain)
    yield ABSENT if row.gain_low is None else f"{_show_ratio(row.gain_low)}–{_show_ratio(row.gain_high)}"
    yield _show_ratio(row.ideal)
    yield ABSENT if row.of_ideal is None else f"{100 * row.of_ideal:.1f}"
    yield _show_ratio(row.ideal_as_mixed)
    yield show_figure(row.cpu)


def _show_ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}"


def _explain(case: Case) -> Iterator[str]:
    for job in case.jobs:
        links = "" if job.links_s is None else f", its bytes fill a link for {show_ms(job.links_s)} ms"
        terms = f", weight {job.weight:g}" * (job.weight != 1) + ", urgent" * job.is_urgent
        yield (
            f"{job.label}{terms}: computes {show_ms(job.compute_s)} ms and waits {show_ms(job.exposed_s)} ms "
            f"(m/c {job.exposed_over_compute:.3f}){links}; taking turns alone costs {100 * job.turns_overhead:+.2f} %"
        )
    yield EXPLAIN_GAIN
