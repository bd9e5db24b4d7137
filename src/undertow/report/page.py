"""One HTML page for a browser: what was measured, the picture, the table, and what every column means.

In: results.  Out: the page as text, complete in itself: it loads nothing and runs no script, so that it can be
mailed and kept.  Every word that comes from outside is escaped.  Without matplotlib the page says
how to get the picture, and is complete otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from undertow.errors import ConfigError
from undertow.report.columns import NOISY_MEANS, Column, choose_columns, choose_definitions, describe_common, group_rows
from undertow.report.picture import INK, PAPER, draw_svg
from undertow.report.points import Point, Results

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --quiet: #59616b; --line: #d4d9df; --band: #f4f6f8;
  --noisy: #8a5a00 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #15181c; --quiet: #a0a8b2; --line: #383e46;
  --band: #1e2329; --noisy: #f0b95a } }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 3rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
p { margin: .4rem 0 }
.quiet, figcaption { color: var(--quiet); font-size: .9rem }
.box { overflow-x: auto; overscroll-behavior-x: contain }
figure { margin: 0 }
figure svg { display: block; width: 100%; min-width: 34rem; height: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 100%; font-size: .92rem }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap }
th { vertical-align: bottom; white-space: normal; cursor: help;
  text-decoration: underline dotted var(--quiet); text-underline-offset: .25em }
.word { text-align: left }
tbody { border-top: 1px solid var(--line) }
tbody tr:hover { background: var(--band) }
tr.noisy { color: var(--noisy) }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .35rem 1.2rem; margin: 0 }
dt { font-weight: 600 }
dd { margin: 0; overflow-wrap: anywhere }
code { background: var(--band); padding: .1rem .35rem; border-radius: .25rem; overflow-wrap: anywhere }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def make_page(results: Results) -> str:
    """The page, ready to be written to a file in UTF-8."""
    title = f"undertow: {_name(results.points)}"
    sections = (
        f"<h1>{escape(title)}</h1>",
        f'<p class="quiet">{escape(describe_common(results.points))}</p>',
        _describe_run(results),
        *(_show_points(results.points) if results.points else ("<p>There are no points in these results.</p>",)),
        _show_notes(results.notes),
    )
    return _PAGE.format(title=escape(title), style=_STYLE, body="\n".join(filter(None, sections)))


def _name(points: Sequence[Point]) -> str:
    """What the page is about: `measured speed of resnet50`."""
    if not points:
        return "no results"
    origins = " and ".join(dict.fromkeys(point.origin for point in points))
    return f"{origins} speed of {', '.join(dict.fromkeys(point.model for point in points))}"


def _describe_run(results: Results) -> str:
    command = f"<code>{escape(results.command)}</code>"
    facts = {"machine": _join(results.machine), "date": escape(results.date), "versions": _join(results.versions)}
    return _section("How it was taken", _list_definitions({**facts, "command": command}.items()))


def _join(facts: Mapping[str, str]) -> str:
    return escape("; ".join(f"{name}: {value}" for name, value in facts.items()))


def _show_points(points: Sequence[Point]) -> tuple[str, ...]:
    columns = choose_columns(points)
    defined = ((escape(column.heading), escape(column.definition)) for column in choose_definitions(points))
    return (
        _section("Throughput", _show_picture(points)),
        _section("Every point", f'<div class="box" tabindex="0">{_make_table(points, columns)}</div>'),
        _section("What the columns mean", _list_definitions(defined)),
    )


_ALT = "Throughput of every system; the table below has the figures."
_CAPTION = """Throughput of all hosts together. Linear speed-up (dashed) is that of one worker alone, times the hosts;
the bound (thin) is what a step allows whose network and computation hide each other completely, of the system that
sends the fewest bytes. Bars reach over half of
the steps."""


def _show_picture(points: Sequence[Point]) -> str:
    try:
        svg = draw_svg(points)
    except ConfigError as error:
        return f'<p class="quiet">There is no picture here: {escape(str(error))}</p>'
    # The picture's own ink and paper give way to the page's, which follow the reader's choice of light or dark.
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
    # A browser would end a line after the hyphen of `speed-up`.
    return escape(heading).replace("-", "&#8209;")


def _align(column: Column) -> str:
    return "" if column.is_number else ' class="word"'


def _show_notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return _section("Notes", f"<ul>{items}</ul>") if items else ""


def _section(heading: str, content: str) -> str:
    return f"<section>\n<h2>{heading}</h2>\n{content}\n</section>"


def _list_definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Both halves are HTML already."""
    return "<dl>\n" + "\n".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in pairs) + "\n</dl>"
