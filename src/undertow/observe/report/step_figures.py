"""Draws the static pictures of a step's page: the uses of time as one bar, the rates of the links, legend swatches.

In: figures.  Out: SVG with the page's colours, without style attributes, which the page's policy forbids.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from undertow.observe.timeline.analysis import Analysis, Study
from undertow.observe.timeline.rank_rows import sample_rates
from undertow.observe.timeline.run_trace import Step
from undertow.observe.timeline.thread_time import TimeUse
from undertow.units import format_bandwidth, format_ns, format_share

BINS = 120
# Rates are drawn up to this multiple of the link's; higher ones are copies to and from the operating system's buffers.
BURST = 1.5
_WIDTH, _HEIGHT, _LEFT, _BELOW = 900.0, 220.0, 8.0, 24.0

FILLS = {
    TimeUse.COMPUTE: "compute",
    TimeUse.WAIT: "wait",
    TimeUse.TURN: "turn",
    TimeUse.HOOK: "hook",
    TimeUse.APPLY: "apply",
    TimeUse.OPTIMIZER: "optimizer",
}
# Line patterns over the colours, for readers who cannot tell the colours apart.
_TEXTURES = {
    "wait": "M0 8L8 0M6 10L14 2M12 10L20 2M18 10L26 2",
    "result": "M0 2L8 10M6 2L14 10M12 2L20 10M18 2L26 10",
    "apply": "M0 8L8 0M8 10L16 2M16 10L24 2M0 2L8 10M8 2L16 10M16 2L24 10",
    "optimizer": "M0 3H26M0 7H26",
    "turn": "M4 0V10M10 0V10M16 0V10M22 0V10",
    "hook": "M4 5h1M10 5h1M16 5h1M22 5h1",
}
LEGEND = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("script", "between layers: the script's own work"),
    ("wait", "waiting"),
    ("hook", "handing over"),
    ("apply", "applying"),
    ("optimizer", "optimizer"),
    ("turn", "another job's turn"),
    ("push", "contribution on the wire"),
    ("result", "result on the wire"),
    ("path", "critical path (a line)"),
)


def draw_bar(analysis: Analysis) -> str:
    """Draw the uses of a step's time side by side; the table below has the figures."""
    left, rectangles = 0.0, []
    for use, time_ns in sorted(analysis.spent_ns.items(), key=lambda item: -item[1]):
        width = _WIDTH * time_ns / analysis.step_ns
        share = format_share(time_ns, analysis.step_ns)
        title = f"<title>{escape(use.value)} {share}</title>"
        rectangles.append(
            f'<rect class="fill-{FILLS[use]}" x="{left:.1f}" width="{width:.1f}" height="28">{title}</rect>'
        )
        left += width
    uses = ", ".join(f"{use.value} {format_share(time, analysis.step_ns)}" for use, time in analysis.spent_ns.items())
    return (
        f'<svg class="bar" viewBox="0 0 {_WIDTH:g} 28" preserveAspectRatio="none" role="img" '
        f'aria-label="Parts of a step: {escape(uses)}">{"".join(rectangles)}</svg>'
    )


def draw_legend() -> str:
    items = (f"<li>{draw_swatch(kind)}{escape(words)}</li>" for kind, words in LEGEND)
    return f'<ul class="legend" aria-label="Legend">{"".join(items)}</ul>'


def draw_swatch(kind: str) -> str:
    lines = _TEXTURES.get(kind)
    texture = f'<path class="texture" d="{lines}"/>' if lines else ""
    shape = '<rect class="fill-path" y="4" width="26" height="3"/>'
    if kind != "path":
        shape = f'<rect class="fill-{kind}" width="26" height="10"/>{texture}'
    return f'<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true">{shape}</svg>'


def draw_links(study: Study) -> str:
    """Draw the rates sent and received over the median step: the ranks' mean as a line, their range as a band."""
    number = study.analysis.median_step
    assert number is not None
    ranks = study.trace.ranks.values()
    window = study.trace.find_window(number)
    out = [sample_rates(rank.outs, window, BINS) for rank in ranks]
    into = [sample_rates(rank.ins, window, BINS) for rank in ranks]
    limit = max((rank.link_bytes_per_s for rank in ranks if rank.link_bytes_per_s), default=None)
    most = max([limit or 0.0, *(max(rates) for rates in (*out, *into))]) * 1.05 or 1.0
    if limit is not None:
        most = min(most, BURST * limit)
    return _frame(window, most, limit, _draw_rates(out, "out", most) + _draw_rates(into, "in", most))


def _draw_rates(by_rank: Sequence[Sequence[float]], direction: str, most: float) -> str:
    columns = list(zip(*by_rank, strict=True))
    means = _list_vertices([sum(column) / len(column) for column in columns], most)
    low, high = (_list_vertices([choose(column) for column in columns], most) for choose in (min, max))
    band = f'<path class="band-{direction}" d="M{" L".join([*high, *reversed(low)])}Z"/>' if len(by_rank) > 1 else ""
    return f'{band}<path class="{direction}" d="M{" L".join(means)}"/>'


def _list_vertices(rates: Sequence[float], most: float) -> list[str]:
    width = (_WIDTH - 2 * _LEFT) / (len(rates) - 1)
    return [f"{_LEFT + index * width:.1f} {_find_y(rate, most):.1f}" for index, rate in enumerate(rates)]


def _find_y(rate: float, most: float) -> float:
    return _HEIGHT - _BELOW - (_HEIGHT - _BELOW - 16) * min(1.0, rate / most)


def _frame(window: Step, most: float, limit: float | None, lines: str) -> str:
    floor = _HEIGHT - _BELOW
    top = ""
    if limit is not None:
        y = _find_y(limit, most)
        top = (
            f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT}" y="{y - 4:.1f}">the link carries {format_bandwidth(limit * 8)}</text>'
        )
    texts = (
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">0 ms</text>'
        f'<text x="{_WIDTH - _LEFT}" y="{_HEIGHT - 8}" text-anchor="end">{format_ns(window.length_ns)}</text>'
    )
    return (
        f'<svg class="rates" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="Rates of the links during '
        f'step {window.number}; the table of ranks has the sums.">{top}{lines}'
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="{floor}" y2="{floor}"/>{texts}</svg>'
    )
