"""The table for a terminal: one row for each point, a line between bandwidths.

In: points.  Out: a rich table.  Every cell is plain text: a model's name is never markup.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich import box
from rich.table import Table

from undertow.report.columns import NOISY, NOISY_MEANS, Column, choose_columns, describe_common, group_rows
from undertow.report.points import Point
from undertow.report.safe_text import Text


def make_table(points: Sequence[Point], *, title: str = "") -> Table:
    """Points in groups of one bandwidth; what they all share is said below the table."""
    table = start_table(title, _describe(points))
    columns = choose_columns(points)
    for column in columns:
        add_column(table, column, points)
    for group in group_rows(points):
        for point in group:
            style = "yellow" if point.is_noisy else ""
            table.add_row(*(Text(column.show(point), style) for column in columns))
        table.add_section()
    return table


def start_table(title: str, caption: str) -> Table:
    """An empty table in the style of all reports."""
    return Table(
        title=Text(title, "bold") if title else None,
        title_justify="left",
        caption=Text(caption, "dim") if caption else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )


def add_column(table: Table, column: Column, points: Sequence[Point]) -> None:
    """Words to the left, numbers to the right; the heading is no wider than it must be, and a value never wraps."""
    widest = max((len(column.show(point)) for point in points), default=0)
    width = max(widest, *map(len, column.heading.split()))
    heading = "\n".join(textwrap.wrap(column.heading, width, break_on_hyphens=False))
    table.add_column(Text(heading), justify="right" if column.is_number else "left", no_wrap=True)


def _describe(points: Sequence[Point]) -> str:
    lines = [describe_common(points)]
    if any(point.is_noisy for point in points):
        lines.append(f"{NOISY} {NOISY_MEANS}")
    return "\n".join(filter(None, lines))
