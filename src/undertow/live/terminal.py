"""The live view on a terminal: a frame with a header, a table of ranks and the last lines of rank 0.

In: a picture of the job, the size of the terminal.  Out: something that rich can print, never larger than that.
Narrow terminals lose columns, the least telling first; of many ranks the most telling are
shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table

from undertow.live.board import Picture, Row
from undertow.live.pulse import Pulse
from undertow.live.wording import format_ms, format_rate, format_share, format_speed, format_time
from undertow.plain_text import clean
from undertow.report.safe_text import Text

MOST_ROWS = 20
FEWEST_LINES = 3  # of rank 0, if it has as many
MOST_NOTICES = 3
SMALLEST = 9  # lines: there is room for one rank
LONGEST_STATE = 40


class Column(NamedTuple):
    """Widths do not depend on what is in them: a table that jumps about cannot be read."""

    heading: str
    show: Callable[[Pulse], str]
    width: int
    importance: int  # 0 stays longest
    is_word: bool = False


def _with_link(rate: float, pulse: Pulse) -> str:
    part = f" {format_share(rate / pulse.link_bytes_per_s):>5}" if pulse.link_bytes_per_s else ""
    return format_rate(rate) + part


_COLUMNS = (
    Column("step", lambda pulse: str(pulse.steps) if pulse.steps else "-", 7, 0),
    Column("waits", lambda pulse: format_share(pulse.wait_share), 5, 1),
    Column("most for", lambda pulse: pulse.waits_for if pulse.wait_share >= 0.01 else "", 16, 4, is_word=True),
    Column("slowest layer", lambda pulse: pulse.layer, 16, 5, is_word=True),
    Column("per step", lambda pulse: format_ms(pulse.layer_ms_per_step) if pulse.layer else "", 8, 6),
    Column("out", lambda pulse: _with_link(pulse.out_bytes_per_s, pulse), 14, 2),
    Column("in", lambda pulse: _with_link(pulse.in_bytes_per_s, pulse), 14, 3),
)
_GAP = 2
_RANK, _HOST, _STATE = 4, 8, 14  # the widths of what is always there; state takes what is left over


def draw(picture: Picture, *, width: int, height: int, notices: Sequence[str] = ()) -> RenderableType:
    """One frame; `notices` are the launcher's own words."""
    header = _draw_header(picture, width)
    lines = picture.lines
    said = _draw_notices(notices, min(MOST_NOTICES, max(0, height - SMALLEST)))
    room = max(1, height - len(header) - len(said) - 5)  # what the table's heading and the gaps around it leave
    shown = _choose(picture.rows, max(1, min(MOST_ROWS, room - min(FEWEST_LINES, len(lines)))))
    left_out = len(picture.rows) - len(shown)
    parts: list[RenderableType] = [*header, Text(), _draw_table(shown, width)]
    if left_out:
        parts.append(Text(f"and {left_out} more like these", style="dim", no_wrap=True))
    room -= len(shown) + bool(left_out)
    parts += said
    if lines and room > 0:
        parts += [Text(), Text("rank 0", style="dim")]
        parts += [Text(line, no_wrap=True, overflow="ellipsis") for line in lines[-room:]]
    return Group(*parts)


def _draw_notices(notices: Sequence[str], most: int) -> list[Text]:
    last = notices[max(0, len(notices) - most) :]
    return [Text(clean(line), style="yellow", no_wrap=True, overflow="ellipsis") for line in last]


def _summarize(picture: Picture, width: int) -> Text:
    """The first line."""
    speed = format_speed(picture.steps_per_s) if picture.steps else "no step seen yet"
    step = f"step {picture.steps}" if picture.steps else ""
    ranks = "1 rank" if picture.world_size == 1 else f"{picture.world_size} ranks"
    if picture.heard < picture.world_size:
        ranks += f", {picture.heard} heard of"
    words = [format_time(picture.elapsed_s), *filter(None, [step]), speed, ranks]
    title = _shorten(picture.script, max(8, width // 3))
    return Text.assemble((title, "bold"), "  ", "  ".join(words), no_wrap=True, overflow="ellipsis")


def _draw_header(picture: Picture, width: int) -> list[Text]:
    waits = f"waits {format_share(picture.wait_share)}"
    if picture.waits_for and picture.wait_share >= 0.01:
        waits += f", most for {picture.waits_for}"
    layer = f"slowest layer {picture.layer} {format_ms(picture.layer_ms_per_step)}" if picture.layer else ""
    below = "   ".join(filter(None, [waits, layer])) if picture.heard else ""
    lines = [_summarize(picture, width), Text(below, style="dim", no_wrap=True, overflow="ellipsis")]
    if picture.verdict:
        lines.append(Text(picture.verdict, style="bold", no_wrap=True, overflow="ellipsis"))
    return lines


def _draw_table(rows: Sequence[Row], width: int) -> Table:
    columns = _fit(width)
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


def _fit(width: int) -> list[Column]:
    """The most important columns for which there is room, in the order in which they stand."""
    left = width - _RANK - _HOST - _STATE - 2 * _GAP
    kept = set()
    for column in sorted(_COLUMNS, key=lambda column: column.importance):
        left -= column.width + _GAP
        if left < 0:
            break
        kept.add(column.importance)
    return [column for column in _COLUMNS if column.importance in kept]


def _draw_row(row: Row, columns: Sequence[Column]) -> list[Text]:
    style = "bold red" if row.is_alarming else "dim" if not row.is_up else ""
    cells = [str(row.rank), row.host, row.state]
    cells += [_show_cell(column, row.pulse) for column in columns]
    return [Text(cell, style=style) for cell in cells]


def _show_cell(column: Column, pulse: Pulse | None) -> str:
    if pulse is None:
        return "-"
    text = column.show(pulse)
    return _shorten(text, column.width) if column.is_word else text


def _shorten(text: str, width: int) -> str:
    """The end of a tensor's name, or of a path, tells more than its beginning."""
    return text if cell_len(text) <= width else "\N{HORIZONTAL ELLIPSIS}" + text[1 - width :]


def _choose(rows: Sequence[Row], most: int) -> list[Row]:
    """Of too many the most telling, in the order of their ranks.

    Who is in trouble, who waits most, and who waits least: that is whom the others wait for.
    """
    if len(rows) <= most:
        return list(rows)
    room = max(1, most - 1)  # a line says how many are left out
    ordered = sorted(rows, key=_urgency)
    troubled = [row for row in ordered if row.is_alarming][:room]
    others = [row for row in ordered if not row.is_alarming]
    last = (room - len(troubled)) // 2
    first = room - len(troubled) - last
    return sorted([*troubled, *others[:first], *others[len(others) - last :]], key=lambda row: row.rank)


def _urgency(row: Row) -> tuple[float, int]:
    return -(row.pulse.wait_share if row.pulse else 0.0), row.rank
