"""Draws the dashboard: a header, a table of ranks and the last lines of rank 0.

In: a snapshot of the job, the size of the terminal.  Out: a frame for rich, never larger than the terminal.
If the terminal is too small, the least important columns and the least interesting ranks are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table

from undertow.observe.live.job_state import JobSnapshot, RankRow
from undertow.observe.meter.status_report import StatusReport
from undertow.observe.report.safe_text import Text
from undertow.plain_text import clean
from undertow.units import format_byte_rate, format_clock, format_ms, format_percent, format_quantity, format_speed

MOST_ROWS = 20
FEWEST_LINES = 3  # of rank 0's output, if it has as many
MOST_NOTICES = 3
SMALLEST = 9  # lines: enough for one rank
LONGEST_STATE = 40


class Column(NamedTuple):
    """A column of fixed width, because moving columns cannot be read."""

    heading: str
    show: Callable[[StatusReport], str]
    width: int
    importance: int  # 0 is the most important
    is_word: bool = False


def _with_link(rate: float, report: StatusReport) -> str:
    share = f" {format_percent(rate / report.link_bytes_per_s):>5}" if report.link_bytes_per_s else ""
    return format_byte_rate(rate) + share


_COLUMNS = (
    Column("step", lambda report: str(report.steps) if report.steps else "-", 7, 0),
    Column("waits", lambda report: format_percent(report.wait_share), 5, 1),
    Column("most for", lambda report: report.waits_for if report.wait_share >= 0.01 else "", 16, 4, is_word=True),
    Column("slowest layer", lambda report: report.layer, 16, 5, is_word=True),
    Column("per step", lambda report: format_ms(report.layer_ms_per_step / 1e3, 2) if report.layer else "", 8, 6),
    Column("out", lambda report: _with_link(report.out_bytes_per_s, report), 14, 2),
    Column("in", lambda report: _with_link(report.in_bytes_per_s, report), 14, 3),
)
_GAP = 2
_RANK, _HOST, _STATE = 4, 8, 14  # widths of the columns that are always shown; state takes the rest


def draw(snapshot: JobSnapshot, *, width: int, height: int, notices: Sequence[str] = ()) -> RenderableType:
    """Return one frame; `notices` are messages of the launcher."""
    header = _draw_header(snapshot, width)
    lines = snapshot.lines
    last = notices[max(0, len(notices) - min(MOST_NOTICES, max(0, height - SMALLEST))) :]
    warnings = [Text(clean(line), style="yellow", no_wrap=True, overflow="ellipsis") for line in last]
    room = max(1, height - len(header) - len(warnings) - 5)  # the table's heading and the gaps around it take 5 lines
    shown = _choose_rows(snapshot.rows, max(1, min(MOST_ROWS, room - min(FEWEST_LINES, len(lines)))))
    left_out = len(snapshot.rows) - len(shown)
    renderables: list[RenderableType] = [*header, Text(), _draw_table(shown, width)]
    if left_out:
        renderables.append(Text(f"and {left_out} more like these", style="dim", no_wrap=True))
    room -= len(shown) + bool(left_out)
    renderables += warnings
    if lines and room > 0:
        renderables += [Text(), Text("rank 0", style="dim")]
        renderables += [Text(line, no_wrap=True, overflow="ellipsis") for line in lines[-room:]]
    return Group(*renderables)


def _summarize(snapshot: JobSnapshot, width: int) -> Text:
    """Return the first line."""
    speed = format_speed(snapshot.steps_per_s) if snapshot.steps else "no step seen yet"
    step = f"step {snapshot.steps}" if snapshot.steps else ""
    ranks = format_quantity(snapshot.world_size, "rank")
    if snapshot.reporting < snapshot.world_size:
        ranks += f", {snapshot.reporting} reporting"
    words = [format_clock(snapshot.elapsed_s), *filter(None, [step]), speed, ranks]
    title = _shorten(snapshot.script, max(8, width // 3))
    return Text.assemble((title, "bold"), "  ", "  ".join(words), no_wrap=True, overflow="ellipsis")


def _draw_header(snapshot: JobSnapshot, width: int) -> list[Text]:
    waits = f"waits {format_percent(snapshot.wait_share)}"
    if snapshot.waits_for and snapshot.wait_share >= 0.01:
        waits += f", most for {snapshot.waits_for}"
    layer = f"slowest layer {snapshot.layer} {format_ms(snapshot.layer_ms_per_step / 1e3, 2)}" if snapshot.layer else ""
    below = "   ".join(filter(None, [waits, layer])) if snapshot.reporting else ""
    lines = [_summarize(snapshot, width), Text(below, style="dim", no_wrap=True, overflow="ellipsis")]
    if snapshot.verdict:
        lines.append(Text(snapshot.verdict, style="bold", no_wrap=True, overflow="ellipsis"))
    return lines


def _draw_table(rows: Sequence[RankRow], width: int) -> Table:
    columns = _choose_columns(width)
    rest = width - _RANK - _GAP - sum(column.width + _GAP for column in columns)
    longest_host = max((cell_len(row.host) for row in rows), default=0)
    host = min(max(longest_host, len("host")), max(_HOST, rest // 3))
    state = max(1, min(rest - host - _GAP, LONGEST_STATE))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    table.add_column("rank", justify="right", width=_RANK)
    table.add_column("host", no_wrap=True, overflow="ellipsis", width=host)
    table.add_column("state", no_wrap=True, overflow="ellipsis", width=state)
    for column in columns:
        justify: Literal["left", "right"] = "left" if column.is_word else "right"
        table.add_column(column.heading, justify=justify, no_wrap=True, overflow="ellipsis", width=column.width)
    for row in rows:
        table.add_row(*_draw_row(row, columns))
    return table


def _choose_columns(width: int) -> list[Column]:
    """Choose the most important columns that fit, in the order of the table."""
    left = width - _RANK - _HOST - _STATE - 2 * _GAP
    kept = set()
    for column in sorted(_COLUMNS, key=lambda column: column.importance):
        left -= column.width + _GAP
        if left < 0:
            break
        kept.add(column.importance)
    return [column for column in _COLUMNS if column.importance in kept]


def _draw_row(row: RankRow, columns: Sequence[Column]) -> list[Text]:
    style = "bold red" if row.is_alarming else "dim" if not row.is_up else ""
    cells = [str(row.rank), row.host, row.state]
    cells += [_show_cell(column, row.report) for column in columns]
    return [Text(cell, style=style) for cell in cells]


def _show_cell(column: Column, report: StatusReport | None) -> str:
    if report is None:
        return "-"
    text = column.show(report)
    return _shorten(text, column.width) if column.is_word else text


def _shorten(text: str, width: int) -> str:
    """Cut the beginning: the end of a tensor's name or of a path is more specific."""
    return text if cell_len(text) <= width else "\N{HORIZONTAL ELLIPSIS}" + text[1 - width :]


def _choose_rows(rows: Sequence[RankRow], most: int) -> list[RankRow]:
    """Choose at most `most` rows, ordered by rank.

    Ranks in trouble come first, then the ranks that wait most and those that wait least, as the others wait for them.
    """
    if len(rows) <= most:
        return list(rows)
    room = max(1, most - 1)  # one line gives the number of ranks left out
    ordered = sorted(rows, key=lambda row: (-row.report.wait_share if row.report else 0.0, row.rank))
    troubled = [row for row in ordered if row.is_alarming][:room]
    others = [row for row in ordered if not row.is_alarming]
    last = (room - len(troubled)) // 2
    first = room - len(troubled) - last
    return sorted([*troubled, *others[:first], *others[len(others) - last :]], key=lambda row: row.rank)
