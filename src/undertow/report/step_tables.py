"""The tables of a step's page: parts, critical path, tensors, ranks, prediction.

In: an analysis.  Out: HTML.  Every word that comes from outside is escaped.  A cell that sorts otherwise than it reads
carries its figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from undertow.lab.bandwidth import format_bandwidth
from undertow.report.columns import ABSENT, show_figure
from undertow.report.step_figures import FILLS, draw_swatch
from undertow.timeline.analysis import Analysis
from undertow.timeline.path import Link
from undertow.timeline.ranks import RankRow
from undertow.timeline.spending import Spent
from undertow.timeline.tensors import TensorRow
from undertow.timeline.words import name_tensors, show_bytes, show_ms, show_share

# A path of more links than this is told by its longest ones.
MOST_LINKS = 40

PARTS = {
    Spent.COMPUTE: "Layers, and the script's own work between them: what is left when all other parts are taken away.",
    Spent.WAIT: "The training thread stands still for the network: at the gate of a tensor, or for all of them.",
    Spent.TURN: "The device belongs to another job (crossover).",
    Spent.HOOK: "A gradient is final and is handed to the engine; copies that this takes are in it.",
    Spent.APPLY: "Results are put in place: factors are multiplied, and deferred optimizer steps done.",
    Spent.OPTIMIZER: "The optimizer's own step, where it is not deferred.",
}


class Cell(NamedTuple):
    """What is read, and what it is sorted by if that is something else."""

    text: str
    value: float | None = None
    look: str = ""  # a class of the style sheet
    title: str = ""
    swatch: str = ""  # HTML of ours


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
    """A table whose headings sort it, in a box that scrolls by itself; `marked` rows stand out."""
    heads = "".join(
        f'<th scope="col"{"" if one.is_number else " class=word"} title="{escape(one.meaning)}">'
        f'<button type="button">{escape(one.heading)}</button></th>'
        for one in columns
    )
    slow = set(marked)
    lines = "\n".join(
        f"<tr{' class=slow' if place in slow else ''}>{''.join(map(_make_cell, row))}</tr>"
        for place, row in enumerate(rows)
    )
    total = f"\n<tfoot><tr>{''.join(map(_make_cell, foot))}</tr></tfoot>" if foot else ""
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="{escape(caption)}"><table id="{name}">'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n</tbody>{total}</table></div>"
    )


def _make_cell(cell: Cell) -> str:
    look = f' class="{cell.look}"' if cell.look else ""
    value = "" if cell.value is None else f' data-value="{cell.value:.12g}"'
    title = f' title="{escape(cell.title)}"' if cell.title else ""
    return f"<td{look}{value}{title}>{cell.swatch}{escape(cell.text)}</td>"


def _time(time_ns: float | None) -> Cell:
    return Cell(ABSENT, -1.0) if time_ns is None else Cell(show_figure(time_ns / 1e6), time_ns)


def _word(text: str, look: str = "word", title: str = "") -> Cell:
    return Cell(text, None, look, title)


# Where the time goes


def show_parts(analysis: Analysis) -> str:
    columns = (
        Column("part", "What the training thread does.", is_number=False),
        Column("ms", "In a step: the mean of all ranks and counted steps."),
        Column("share", "Of the step."),
        Column("worst rank", "The rank with most of it, and how much."),
        Column("what it is", "", is_number=False),
    )
    rows = [
        _make_part(analysis, part) for part in Spent if analysis.spent_ns[part] or part in (Spent.COMPUTE, Spent.WAIT)
    ]
    whole = analysis.step_ns
    foot = (_word("step"), _time(whole), Cell("100 %"), Cell(""), _word("the parts add up exactly", "long"))
    return make_table("parts", columns, rows, caption="Where the time of a step goes", foot=foot)


def _make_part(analysis: Analysis, part: Spent) -> tuple[Cell, ...]:
    time_ns = analysis.spent_ns[part]
    worst = max(analysis.ranks, key=lambda row: row.per_step(part))
    return (
        _word(part.value)._replace(swatch=draw_swatch(FILLS[part])),
        _time(time_ns),
        Cell(show_share(time_ns, analysis.step_ns), time_ns),
        Cell(f"rank {worst.rank}: {show_ms(worst.per_step(part))}", worst.per_step(part)),
        _word(PARTS[part], "long"),
    )


# The critical path


def show_path(analysis: Analysis) -> str:
    links = list(analysis.path)
    whole = sum(link.length_ns for link in links)
    kept = sorted(sorted(links, key=lambda link: -link.length_ns)[:MOST_LINKS], key=lambda link: link.begin_ns)
    columns = (
        Column("from ms", "From the begin of the step."),
        Column("ms", "How long."),
        Column("share", "Of the path, which is as long as the step."),
        Column("what", "", is_number=False),
        Column("where", "", is_number=False),
        Column("of", "The layers, or what travelled.", is_number=False),
    )
    begin_ns = links[0].begin_ns if links else 0
    rows = [_make_link(link, begin_ns, whole) for link in kept]
    left = whole - sum(link.length_ns for link in kept)
    rest = f'<p class="quiet">{len(links) - len(kept)} shorter pieces, {show_ms(left)} together, are left out here.</p>'
    table = make_table("path", columns, rows, caption="The critical path, in the order of time")
    return table + (rest if len(kept) < len(links) else "")


def _make_link(link: Link, begin_ns: int, whole: int) -> tuple[Cell, ...]:
    where = f"rank {link.rank}" if link.peer is None else f"rank {link.rank} to {link.peer}"
    return (
        _time(link.begin_ns - begin_ns),
        _time(link.length_ns),
        Cell(show_share(link.length_ns, whole), link.length_ns),
        _word(link.cause.value),
        _word(where),
        _word(link.name, "name"),
    )


# Tensors


def show_tensors(analysis: Analysis) -> str:
    columns = (
        Column("tensor", "Tiny tensors that travel in one slice are one row.", is_number=False),
        Column("scheme", "How it travels.", is_number=False),
        Column("bytes out", "Of one worker in one step: contributions and its shard's answers."),
        Column("slices", "That those bytes are cut into, per worker and step."),
        Column("queued ms", "In the outbox, the mean of its slices."),
        Column("longest", "In the outbox."),
        Column("wire ms", "From leaving the outbox to the last byte at the receiver, the mean of its slices."),
        Column("longest", "On the wire."),
        Column("waited ms", "By the training thread, per step; the mean of all ranks."),
        Column("why this scheme", "", is_number=False),
    )
    rounds = analysis.rounds
    rows = [_make_tensor(row, rounds) for row in analysis.tensors]
    total_bytes = sum(row.total_bytes for row in analysis.tensors)
    slices = sum(row.total_slices for row in analysis.tensors)
    waited_ns = sum(row.waited_total_ns for row in analysis.tensors)
    foot = (
        _word("together"),
        _word(""),
        Cell(show_bytes(total_bytes / rounds)),
        Cell(show_figure(slices / rounds)),
        *(Cell("") for _ in range(4)),
        _time(waited_ns / rounds),
        _word(""),
    )
    return make_table("tensors", columns, rows, caption="Every tensor", foot=foot)


def _make_tensor(row: TensorRow, rounds: int) -> tuple[Cell, ...]:
    return (
        _word(name_tensors(row.tensors), "name", ", ".join(row.tensors) if len(row.tensors) > 1 else ""),
        _word(row.scheme),
        Cell(show_bytes(row.total_bytes / rounds) if row.total_bytes else ABSENT, row.total_bytes),
        Cell(show_figure(row.total_slices / rounds) if row.total_slices else ABSENT, row.total_slices),
        _time(row.queued_mean_ns),
        _time(row.queued_longest_ns),
        _time(row.wire_mean_ns),
        _time(row.wire_longest_ns),
        _time(row.waited_total_ns / rounds),
        _word(row.reason, "long"),
    )


# Ranks


def show_ranks(analysis: Analysis) -> str:
    parts = [part for part in Spent if any(row.spent_ns[part] for row in analysis.ranks)]
    columns = (
        Column("rank", ""),
        Column("host", "", is_number=False),
        Column("step ms", "The mean of its counted steps; the parts to the right add up to it."),
        *(Column(part.value, PARTS[part]) for part in parts),
        Column("out", "Bytes of one step that it sends."),
        Column("in", "Bytes of one step that it receives."),
        Column("link", "What it carries each way, as measured."),
        Column("used", "Of what the busier direction of the link could carry."),
    )
    slow = {straggler.rank for straggler in analysis.stragglers} | {link.rank for link in analysis.slow_links}
    marked = [place for place, row in enumerate(analysis.ranks) if row.rank in slow]
    rows = [_make_rank(row, parts) for row in analysis.ranks]
    return make_table("ranks", columns, rows, caption="Every rank", marked=marked)


def _make_rank(row: RankRow, parts: Sequence[Spent]) -> tuple[Cell, ...]:
    link, rate, share = row.link, row.link.bytes_per_s, row.link.share
    return (
        Cell(str(row.rank), row.rank),
        _word(row.host),
        _time(row.step_ns / row.steps),
        *(_time(row.per_step(part)) for part in parts),
        Cell(show_bytes(link.out_bytes / row.steps), link.out_bytes),
        Cell(show_bytes(link.in_bytes / row.steps), link.in_bytes),
        Cell(ABSENT, -1.0) if rate is None else Cell(format_bandwidth(rate * 8), rate),
        Cell(ABSENT, -1.0) if share is None else Cell(show_share(share, 1), share),
    )


# Prediction


def show_prediction(analysis: Analysis) -> str:
    found = analysis.prediction
    if found is None:
        return "<p>There is no plan in the trace, so nothing was predicted.</p>"
    columns = (
        Column("time of", "", is_number=False),
        Column("predicted ms", "By the plan in force."),
        Column("measured ms", "The median of the counted steps; compute: the median of the ranks."),
        Column("measured is", "Compared with the prediction."),
    )
    pairs = (
        ("step", found.predicted_step_s, found.measured_step_s),
        ("compute", found.predicted_compute_s, found.measured_compute_s),
    )
    rows = [
        (_word(name), _time(said * 1e9), _time(was * 1e9), Cell(f"{was / said - 1:+.0%}" if said else ABSENT))
        for name, said, was in pairs
    ]
    return make_table("prediction", columns, rows, caption="Predicted and measured")
