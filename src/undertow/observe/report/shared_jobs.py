"""Figures of jobs that share devices, measured by `undertow share bench` or predicted by `undertow simulate --share`.

In: seconds per step, alone and in each arrangement.  Out: rows and a table, in the format that both commands share.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec
from rich.table import Table

from undertow.observe.report.safe_text import Text
from undertow.observe.report.table import start_table
from undertow.units import format_ms


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


def start_sharing_table(title: str, explanation: Iterable[str], names: Sequence[str], headings: Sequence[str]) -> Table:
    """Return a table without rows: the arrangement, two columns for each job, then `headings`."""
    table = start_table(title, "\n".join(explanation))
    table.add_column("arrangement", no_wrap=True)
    for heading in (*(h for name in names for h in (f"{name}\nstep, ms", "×\nalone")), *headings):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    return table
