"""Makes the tables of a step's page: uses of time, critical path, tensors, ranks, prediction.

In: an analysis.  Out: HTML.  All text from outside is escaped.  Cells are sorted by their value, if any, else by text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from undertow.observe.report.step_figures import FILLS, draw_swatch
from undertow.observe.timeline.analysis import Analysis
from undertow.observe.timeline.critical_path import PathLink
from undertow.observe.timeline.rank_rows import RankRow
from undertow.observe.timeline.run_trace import name_tensors
from undertow.observe.timeline.tensor_rows import TensorRow
from undertow.observe.timeline.thread_time import TimeUse
from undertow.units import (
    ABSENT,
    format_bandwidth,
    format_bytes,
    format_change,
    format_figure,
    format_ms_figure,
    format_ns,
    format_share,
)

# Of a longer path, only this many of the longest links are listed.
MOST_LINKS = 40

USE_MEANINGS = {
    TimeUse.COMPUTE: "Layers, and the script's work between them: all time without another use.",
    TimeUse.WAIT: "The training thread waits for the network: at the gate of a tensor, or for all tensors.",
    TimeUse.TURN: "Another job has the device (crossover).",
    TimeUse.HOOK: "A final gradient is handed to the engine, and copied if necessary.",
    TimeUse.APPLY: "Results are written to their tensors: factors are multiplied, deferred optimizer steps run.",
    TimeUse.OPTIMIZER: "The optimizer's own step, where it is not deferred.",
}


class Cell(NamedTuple):
    """Cell of a table: its text, and the value that it is sorted by, if not by the text."""

    text: str
    value: float | None = None
    css_class: str = ""
    title: str = ""
    swatch: str = ""  # trusted HTML


class Column(NamedTuple):
    heading: str
    meaning: str
    is_number: bool = True


def make_table(
    name: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str,
    foot: Sequence[Cell] = (),
    marked: Iterable[int] = (),
) -> str:
    """Make a table in a box that scrolls; clicks on headings sort it, and `marked` rows are highlighted."""
    heads = "".join(
        f'<th scope="col"{"" if one.is_number else " class=word"} title="{escape(one.meaning)}">'
        f'<button type="button">{escape(one.heading)}</button></th>'
        for one in columns
    )
    highlighted = set(marked)
    lines = "\n".join(
        f"<tr{' class=slow' if index in highlighted else ''}>{''.join(map(_make_cell, row))}</tr>"
        for index, row in enumerate(rows)
    )
    total = f"\n<tfoot><tr>{''.join(map(_make_cell, foot))}</tr></tfoot>" if foot else ""
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="{escape(caption)}"><table id="{name}">'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n</tbody>{total}</table></div>"
    )


def _make_cell(cell: Cell) -> str:
    css_class = f' class="{cell.css_class}"' if cell.css_class else ""
    value = "" if cell.value is None else f' data-value="{cell.value:.12g}"'
    title = f' title="{escape(cell.title)}"' if cell.title else ""
    return f"<td{css_class}{value}{title}>{cell.swatch}{escape(cell.text)}</td>"


def _time(time_ns: float | None) -> Cell:
    return Cell(ABSENT, -1.0) if time_ns is None else Cell(format_ms_figure(time_ns / 1e9), time_ns)


def _word(text: str, css_class: str = "word", title: str = "") -> Cell:
    return Cell(text, None, css_class, title)


# Where the time goes


def show_uses(analysis: Analysis) -> str:
    columns = (
        Column("use", "What the training thread does.", is_number=False),
        Column("ms", "Per step: the mean of all ranks and counted steps."),
        Column("share", "Share of the step."),
        Column("worst rank", "The rank with the longest time of this use."),
        Column("meaning", "", is_number=False),
    )
    rows = [
        _make_use(analysis, use) for use in TimeUse if analysis.spent_ns[use] or use in (TimeUse.COMPUTE, TimeUse.WAIT)
    ]
    whole = analysis.step_ns
    foot = (_word("step"), _time(whole), Cell("100 %"), Cell(""), _word("the exact sum of all uses", "long"))
    return make_table("uses", columns, rows, caption="Where the time of a step goes", foot=foot)


def _make_use(analysis: Analysis, use: TimeUse) -> tuple[Cell, ...]:
    time_ns = analysis.spent_ns[use]
    worst = max(analysis.ranks, key=lambda row: row.per_step(use))
    return (
        _word(use.value)._replace(swatch=draw_swatch(FILLS[use])),
        _time(time_ns),
        Cell(format_share(time_ns, analysis.step_ns), time_ns),
        Cell(f"rank {worst.rank}: {format_ns(worst.per_step(use))}", worst.per_step(use)),
        _word(USE_MEANINGS[use], "long"),
    )


# The critical path


def show_path(analysis: Analysis) -> str:
    links = list(analysis.path)
    whole = sum(link.length_ns for link in links)
    kept = sorted(sorted(links, key=lambda link: -link.length_ns)[:MOST_LINKS], key=lambda link: link.begin_ns)
    columns = (
        Column("from ms", "Time since the beginning of the step."),
        Column("ms", "Duration."),
        Column("share", "Share of the path, which is as long as the step."),
        Column("what", "", is_number=False),
        Column("where", "", is_number=False),
        Column("layer or tensor", "The layers, or the tensors that were sent.", is_number=False),
    )
    begin_ns = links[0].begin_ns if links else 0
    rows = [_make_link(link, begin_ns, whole) for link in kept]
    left = whole - sum(link.length_ns for link in kept)
    rest = f'<p class="quiet">{len(links) - len(kept)} shorter links, {format_ns(left)} in total, are not listed.</p>'
    table = make_table("path", columns, rows, caption="The critical path, in chronological order")
    return table + (rest if len(kept) < len(links) else "")


def _make_link(link: PathLink, begin_ns: int, whole: int) -> tuple[Cell, ...]:
    where = f"rank {link.rank}" if link.peer is None else f"rank {link.rank} to {link.peer}"
    return (
        _time(link.begin_ns - begin_ns),
        _time(link.length_ns),
        Cell(format_share(link.length_ns, whole), link.length_ns),
        _word(link.cause.value),
        _word(where),
        _word(link.name, "name"),
    )


# Tensors


def show_tensors(analysis: Analysis) -> str:
    columns = (
        Column("tensor", "Tiny tensors that share a slice are one row.", is_number=False),
        Column("scheme", "How it is synchronised.", is_number=False),
        Column("bytes out", "Sent by one worker in one step: contributions and its shard's answers."),
        Column("slices", "Number of slices with those bytes, per worker and step."),
        Column("queued ms", "Mean time of its slices in the send queue."),
        Column("longest", "Longest time in the send queue."),
        Column("wire ms", "Mean time of its slices from leaving the send queue to the last byte at the receiver."),
        Column("longest", "Longest time on the wire."),
        Column("waited ms", "Time per step that the training thread waited for it; the mean of all ranks."),
        Column("why this scheme", "", is_number=False),
    )
    rounds = analysis.rounds
    rows = [_make_tensor(row, rounds) for row in analysis.tensors]
    total_bytes = sum(row.total_bytes for row in analysis.tensors)
    slices = sum(row.total_slices for row in analysis.tensors)
    waited_ns = sum(row.waited_total_ns for row in analysis.tensors)
    foot = (
        _word("total"),
        _word(""),
        Cell(format_bytes(total_bytes / rounds)),
        Cell(format_figure(slices / rounds)),
        *(Cell("") for _ in range(4)),
        _time(waited_ns / rounds),
        _word(""),
    )
    return make_table("tensors", columns, rows, caption="Every tensor", foot=foot)


def _make_tensor(row: TensorRow, rounds: int) -> tuple[Cell, ...]:
    return (
        _word(name_tensors(row.tensors), "name", ", ".join(row.tensors) if len(row.tensors) > 1 else ""),
        _word(row.scheme),
        Cell(format_bytes(row.total_bytes / rounds) if row.total_bytes else ABSENT, row.total_bytes),
        Cell(format_figure(row.total_slices / rounds) if row.total_slices else ABSENT, row.total_slices),
        _time(row.queued_mean_ns),
        _time(row.queued_longest_ns),
        _time(row.wire_mean_ns),
        _time(row.wire_longest_ns),
        _time(row.waited_total_ns / rounds),
        _word(row.reason, "long"),
    )


# Ranks


def show_ranks(analysis: Analysis) -> str:
    uses = [use for use in TimeUse if any(row.spent_ns[use] for row in analysis.ranks)]
    columns = (
        Column("rank", ""),
        Column("host", "", is_number=False),
        Column("step ms", "The mean of its counted steps; the columns to the right add up to it."),
        *(Column(use.value, USE_MEANINGS[use]) for use in uses),
        Column("out", "Bytes that it sends in one step."),
        Column("in", "Bytes that it receives in one step."),
        Column("link", "Measured rate of its link, each way."),
        Column("used", "Bytes in the busier direction of the link, as a share of what it could have carried."),
    )
    slow = {straggler.rank for straggler in analysis.stragglers} | {link.rank for link in analysis.slow_links}
    marked = [index for index, row in enumerate(analysis.ranks) if row.rank in slow]
    rows = [_make_rank(row, uses) for row in analysis.ranks]
    return make_table("ranks", columns, rows, caption="Every rank", marked=marked)


def _make_rank(row: RankRow, uses: Sequence[TimeUse]) -> tuple[Cell, ...]:
    link, rate, share = row.link, row.link.bytes_per_s, row.link.share
    return (
        Cell(str(row.rank), row.rank),
        _word(row.host),
        _time(row.step_ns / row.steps),
        *(_time(row.per_step(use)) for use in uses),
        Cell(format_bytes(link.out_bytes / row.steps), link.out_bytes),
        Cell(format_bytes(link.in_bytes / row.steps), link.in_bytes),
        Cell(ABSENT, -1.0) if rate is None else Cell(format_bandwidth(rate * 8), rate),
        Cell(ABSENT, -1.0) if share is None else Cell(format_share(share, 1), share),
    )


# Prediction


def show_prediction(analysis: Analysis) -> str:
    found = analysis.prediction
    if found is None:
        return "<p>There is no plan in the trace, so nothing was predicted.</p>"
    columns = (
        Column("time of", "", is_number=False),
        Column("predicted ms", "By the plan in force."),
        Column("measured ms", "The median of the counted steps; for compute, the median of the ranks."),
        Column("difference", "Difference of the measured time from the prediction."),
    )
    pairs = (
        ("step", found.predicted_step_s, found.measured_step_s),
        ("compute", found.predicted_compute_s, found.measured_compute_s),
    )
    rows = [
        (
            _word(name),
            _time(predicted_s * 1e9),
            _time(measured_s * 1e9),
            Cell(format_change(measured_s / predicted_s - 1, 0) if predicted_s else ABSENT),
        )
        for name, predicted_s, measured_s in pairs
    ]
    return make_table("prediction", columns, rows, caption="Predicted and measured")
