"""Makes tables for the terminal; that of results has one row per point, and a line between bandwidths.

In: points, or other items.  Out: a rich table.  Every cell is plain text: a model's name is never markup.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from rich import box
from rich.table import Table

from undertow.observe.report.columns import NOISY, NOISY_MEANS, Column, choose_columns, describe_common, group_rows
from undertow.observe.report.points import Point
from undertow.observe.report.safe_text import Text

Justify = Literal["left", "right"]
T = TypeVar("T")


def make_table(points: Sequence[Point], *, title: str = "") -> Table:
    """Make a table of points, grouped by bandwidth; below it is what all points have in common."""
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


def start_table(title: str, caption: str, columns: Iterable[tuple[str, Justify]] = ()) -> Table:
    """Make a table without rows in the style of all reports, with these headings."""
    table = Table(
        title=Text(title, "bold") if title else None,
        title_justify="left",
        caption=Text(caption, "dim") if caption else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading, justify in columns:
        table.add_column(Text(heading), justify=justify)
    return table


def fill_table(
    title: str,
    caption: str,
    columns: Sequence[tuple[str, Justify, Callable[[T], str]]],
    items: Iterable[T],
    choose_style: Callable[[T], str] = lambda item: "",
) -> Table:
    """Make a table with a row for each item; a column is its heading, its alignment, and what it shows of an item."""
    table = start_table(title, caption, [(heading, justify) for heading, justify, _ in columns])
    for item in items:
        table.add_row(*(Text(show(item), choose_style(item)) for _, _, show in columns))
    return table


def add_column(table: Table, column: Column, points: Sequence[Point]) -> None:
    """Add a column, with text on the left and numbers on the right; only the heading wraps."""
    widest = max((len(column.show(point)) for point in points), default=0)
    width = max(widest, *map(len, column.heading.split()))
    heading = "\n".join(textwrap.wrap(column.heading, width, break_on_hyphens=False))
    table.add_column(Text(heading), justify="right" if column.is_number else "left", no_wrap=True)


def _describe(points: Sequence[Point]) -> str:
    lines = [describe_common(points)]
    if any(point.is_noisy for point in points):
        lines.append(f"{NOISY} {NOISY_MEANS}")
    return "\n".join(filter(None, lines))
