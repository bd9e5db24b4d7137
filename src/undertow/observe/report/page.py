"""HTML page of benchmark results: what was measured, a picture, the table, and what every column means.

In: results.  Out: the page as text.  It loads nothing and runs no script, so that it can be mailed and kept.  All text
from outside is escaped.  Without matplotlib the page has no picture, but says how to get one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from undertow.errors import ConfigError
from undertow.observe.report.columns import (
    NOISY_MEANS,
    Column,
    choose_columns,
    choose_definitions,
    describe_common,
    group_rows,
)
from undertow.observe.report.document import list_definitions, make_document, section
from undertow.observe.report.picture import INK, PAPER, draw_svg
from undertow.observe.report.points import Point, Results

_STYLE = """
:root { --noisy: #8a5a00 }
@media (prefers-color-scheme: dark) { :root { --noisy: #f0b95a } }
figure svg { min-width: 34rem }
tr.noisy { color: var(--noisy) }
"""


def make_page(results: Results) -> str:
    """Make the page, as text for a file in UTF-8."""
    title = f"undertow: {_name(results.points)}"
    sections = (
        f"<h1>{escape(title)}</h1>",
        f'<p class="quiet">{escape(describe_common(results.points))}</p>',
        _describe_run(results),
        *(_show_points(results.points) if results.points else ("<p>There are no points in these results.</p>",)),
        _show_notes(results.notes),
    )
    return make_document(title, "\n".join(filter(None, sections)), style=_STYLE)


def _name(points: Sequence[Point]) -> str:
    """Return the subject of the page: `measured speed of resnet50`."""
    if not points:
        return "no results"
    origins = " and ".join(dict.fromkeys(point.origin for point in points))
    return f"{origins} speed of {', '.join(dict.fromkeys(point.model for point in points))}"


def _describe_run(results: Results) -> str:
    command = f"<code>{escape(results.command)}</code>"
    facts = {"machine": _join(results.machine), "date": escape(results.date), "versions": _join(results.versions)}
    return section("How it was measured", list_definitions({**facts, "command": command}.items()))


def _join(facts: Mapping[str, str]) -> str:
    return escape("; ".join(f"{name}: {value}" for name, value in facts.items()))


def _show_points(points: Sequence[Point]) -> tuple[str, ...]:
    columns = choose_columns(points)
    defined = ((escape(column.heading), escape(column.definition)) for column in choose_definitions(points))
    return (
        section("Throughput", _show_picture(points)),
        section("Every point", f'<div class="box" tabindex="0">{_make_table(points, columns)}</div>'),
        section("Columns", list_definitions(defined)),
    )


_ALT = "Throughput of every system; the table below has the figures."
_CAPTION = """Throughput of all hosts together. Linear speed-up (dashed) is the throughput of one worker alone times the
number of hosts. The bound (thin) is the throughput if network and computation overlapped completely, for the system
that sends the fewest bytes. Bars cover half of the steps, between the quartiles."""


def _show_picture(points: Sequence[Point]) -> str:
    try:
        svg = draw_svg(points)
    except ConfigError as error:
        return f'<p class="quiet">No picture: {escape(str(error))}</p>'
    # The picture's colours of text and background are replaced by the page's, which follow the reader's colour scheme.
    svg = (
        svg.replace(INK, "currentColor")
        .replace(PAPER, "none")
        .replace("<svg ", f'<svg role="img" aria-label="{_ALT}" ', 1)
    )
    return f'<figure><div class="box" tabindex="0">{svg}</div><figcaption>{_CAPTION}</figcaption></figure>'


def _make_table(points: Sequence[Point], columns: Sequence[Column]) -> str:
    heads = (f'<th{_align(c)} scope="col" title="{escape(c.definition)}">{_unbroken(c.heading)}</th>' for c in columns)
    bodies = (
        "<tbody>\n" + "\n".join(_make_row(point, columns) for point in group) + "\n</tbody>"
        for group in group_rows(points)
    )
    return f"<table>\n<thead><tr>{''.join(heads)}</tr></thead>\n" + "\n".join(bodies) + "\n</table>"


def _make_row(point: Point, columns: Sequence[Column]) -> str:
    cells = (f"<td{_align(column)}>{escape(column.show(point))}</td>" for column in columns)
    mark = f' class="noisy" title="{NOISY_MEANS}"' if point.is_noisy else ""
    return f"<tr{mark}>{''.join(cells)}</tr>"


def _unbroken(heading: str) -> str:
    # A browser would break a line after the hyphen of `speed-up`.
    return escape(heading).replace("-", "&#8209;")


def _align(column: Column) -> str:
    return "" if column.is_number else ' class="word"'


def _show_notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return section("Notes", f"<ul>{items}</ul>") if items else ""
