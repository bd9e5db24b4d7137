"""Figures of jobs that share devices, measured by `undertow share bench` or predicted by `undertow simulate --share`.

In: seconds per step, alone and in each arrangement.  Out: rows and a table, in the format that both commands share.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
from rich.table import Table

from undertow.crossover.gain import EXPLAIN_GAIN
from undertow.observe.report.safe_text import Text
from undertow.observe.report.table import start_table
from undertow.units import ABSENT, format_ms, format_ms_figure


class Arrangement(enum.Enum):
    """Arrangement in which jobs train; the value is its name in the table."""

    ALONE = "one after the other"
    TURNS = "alone, taking turns"  # measured only
    TOGETHER = "together"  # on a device that runs operations in the order in which they arrive
    CROSSOVER = "crossover"
    COMPUTE = "without the network"  # measured only, where jobs really compute

    @property
    def is_company(self) -> bool:
        """Whether all jobs train at the same time."""
        return self in (Arrangement.TOGETHER, Arrangement.CROSSOVER)


class SharingJob(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one job that trains alone."""

    model: str
    weight: float
    is_urgent: bool
    compute_s: float  # c of a step
    exposed_s: float  # m of a step: what it waits for the network
    links_s: float | None  # time that its bytes fill a link; None: links are not shaped

    def describe(self, name: str) -> str:
        """Describe the job's weight, urgency and step in words."""
        terms = f", weight {self.weight:g}" * (self.weight != 1) + ", urgent" * self.is_urgent
        return f"{name}{terms}: computes {format_ms(self.compute_s)} and waits {format_ms(self.exposed_s)}"


class SharingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one arrangement; lists are in the order of the jobs."""

    arrangement: str
    steps_s: list[float]
    slow_downs: list[float]  # steps_s over the time alone
    gain: float | None = None  # work done in the same time, over one job after the other


Row = TypeVar("Row", bound=SharingRow)


def make_sharing_table(
    title: str,
    explanation: Iterable[str],
    names: Sequence[str],
    rows: Iterable[Row],
    figures: Sequence[tuple[str, Callable[[Row], str]]],
) -> Table:
    """Make a table with a row for each arrangement: the step of each job, the gain, then `figures`.

    `names` are those of the jobs.  What a gain means is explained below the table, after `explanation`.
    """
    table = start_table(title, "\n".join([*explanation, EXPLAIN_GAIN]))
    table.add_column("arrangement", no_wrap=True)
    steps = [heading for name in names for heading in (f"{name}\nstep, ms", "×\nalone")]
    for heading in (*steps, "gain", *(heading for heading, _ in figures)):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, (*_show(row), *(show(row) for _, show in figures))))
    return table


def _show(row: SharingRow) -> Iterator[str]:
    yield row.arrangement
    for step_s, slow_down in zip(row.steps_s, row.slow_downs, strict=True):
        yield format_ms_figure(step_s) if math.isfinite(step_s) else ABSENT
        yield show_ratio(slow_down)
    yield show_ratio(row.gain)


def show_ratio(value: float | None) -> str:
    """Format a gain or a slow-down; an urgent job may leave others no time, so that theirs is infinite."""
    return f"{value:.3f}" if value is not None and math.isfinite(value) else ABSENT
