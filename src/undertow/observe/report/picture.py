"""Draws panels of throughput over bandwidth (or hosts), with one line for each system.

In: points.  Out: a PNG file, or an SVG as text; equal points always give the same SVG.
Needs matplotlib, which is imported only when something is drawn.  The user's settings of matplotlib have no effect, and
are restored afterwards.
"""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from undertow.errors import ConfigError
from undertow.observe.report.panels import Axis, Line, Panel, make_panels, make_title
from undertow.observe.report.points import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1b1f24"
PAPER = "#ffffff"
DPI = 150
_CHARACTERS_PER_INCH = 11
_QUIET = "#7d858e"  # readable on white and on black
# Okabe and Ito's palette, which colour-blind readers can tell apart, without its yellow; markers differ as well.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = "osD^vP"
_FIRST = ("undertow", "ddp")  # these have the same colours in every picture
_RC_PARAMS: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": _QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _QUIET,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name does not begin a formula
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "legend.frameon": False,
    "legend.title_fontsize": 11,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "undertow",
}


def draw_png(points: Sequence[Point], path: str | os.PathLike[str]) -> None:
    """Write the picture to a file; raise `ConfigError` without points or without matplotlib."""
    with _figure(points) as figure:
        try:
            figure.savefig(path, format="png", dpi=DPI)
        except OSError as error:
            raise ConfigError(f"the picture cannot be written to {os.fspath(path)}: {error.strerror}") from None


def draw_svg(points: Sequence[Point]) -> str:
    """Return the picture as an `<svg>` element, which is also a valid file."""
    text = io.StringIO()
    with _figure(points) as figure:
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = text.getvalue()
    return svg[svg.index("<svg") :]  # without the DOCTYPE, which refers to a file on another server


@contextmanager
def _figure(points: Sequence[Point]) -> Iterator[Figure]:
    if not points:
        raise ConfigError("there are no points to draw: run a benchmark or a simulation first")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("pictures need matplotlib: pip install 'undertow[pictures]'") from None
    panels = make_panels(points)
    columns = 1 if len(panels) == 1 else 2
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC_PARAMS)
        size = (7.2, 4.4) if columns == 1 else (9.6, 3.5 * rows + 0.6)
        figure = Figure(figsize=size, layout="constrained")
        styles = _choose_styles(panels)
        for index, panel in enumerate(panels):
            _draw_panel(figure.add_subplot(rows, columns, index + 1), panel, styles)
        _draw_legend(figure, _choose_entries(panels, styles), make_title(points))
        yield figure


_LineStyle = dict[str, Any]
_Styles = dict[tuple[str, str], _LineStyle]


def _choose_styles(panels: Sequence[Panel]) -> _Styles:
    """Choose the colour and marker of every line; beside measured lines, simulated ones are dotted and hollow."""
    lines = [line for panel in panels for line in panel.lines]
    systems = list(dict.fromkeys((*_FIRST, *(line.system for line in lines))))
    is_mixed = len({line.origin for line in lines}) > 1
    styles: _Styles = {}
    for line in sorted(lines, key=lambda line: (systems.index(line.system), line.origin)):
        number = systems.index(line.system)
        is_hollow = is_mixed and line.origin == "simulated"
        styles[line.system, line.origin] = {
            "color": _COLOURS[number % len(_COLOURS)],
            "marker": _MARKERS[(number + number // len(_COLOURS)) % len(_MARKERS)],
            "markerfacecolor": PAPER if is_hollow else _COLOURS[number % len(_COLOURS)],
            "linestyle": ":" if is_hollow else "-",
            "label": f"{line.system} ({line.origin})" if is_mixed else line.system,
        }
    return styles


_LINEAR: _LineStyle = {"color": _QUIET, "linestyle": (0, (5, 3)), "linewidth": 1.4, "label": "linear speed-up"}
_BOUND: _LineStyle = {"color": INK, "linestyle": "-", "linewidth": 0.8, "label": "bound"}
_RING: _LineStyle = {"color": INK, "linestyle": "none", "marker": "o", "markersize": 11, "markerfacecolor": "none"}
_RING |= {"markeredgewidth": 0.8, "label": "too noisy"}
_BAR: _LineStyle = {
    "color": _QUIET,
    "linestyle": "none",
    "marker": "|",
    "markersize": 13,
    "label": "quartiles of the steps",
}


def _draw_panel(axes: Axes, panel: Panel, styles: _Styles) -> None:
    axes.plot(*zip(*panel.linear, strict=True), **_LINEAR)
    if panel.bound:
        axes.plot(*zip(*panel.bound, strict=True), **_BOUND)
    for line in panel.lines:
        _draw_line(axes, line, styles[line.system, line.origin])
    axes.set_title(panel.title)
    axes.set_ylabel("samples/s")
    heights = [*(mark.high for line in panel.lines for mark in line.marks), *(y for _, y in panel.linear)]
    axes.set_ylim(bottom=0, top=1.06 * max(heights))
    _draw_axis(axes, panel)


def _draw_line(axes: Axes, line: Line, style: _LineStyle) -> None:
    joined = [mark for mark in line.marks if not mark.is_apart]
    apart = [mark for mark in line.marks if mark.is_apart]
    for marks, options in ((joined, style), (apart, style | {"linestyle": "none"})):
        spread = [[max(0.0, mark.y - mark.low) for mark in marks], [max(0.0, mark.high - mark.y) for mark in marks]]
        xs, ys = [mark.x for mark in marks], [mark.y for mark in marks]
        axes.errorbar(xs, ys, yerr=spread, linewidth=1.8, markersize=5.5, elinewidth=1.2, capsize=3, **options)
    noisy = [mark for mark in line.marks if mark.is_noisy]
    axes.plot([mark.x for mark in noisy], [mark.y for mark in noisy], **_RING)


def _draw_axis(axes: Axes, panel: Panel) -> None:
    if panel.axis is Axis.BANDWIDTH:
        axes.set_xscale("log")
    axes.set_xlim(*panel.limits)
    axes.set_xticks(list(panel.ticks), list(panel.ticks.values()))
    axes.set_xticks([], minor=True)
    axes.set_xlabel(panel.axis.value)
    if panel.apart is not None:
        axes.axvline(panel.apart, color=_QUIET, linewidth=0.8, linestyle=":")


def _choose_entries(panels: Sequence[Panel], styles: _Styles) -> list[_LineStyle]:
    marks = [mark for panel in panels for line in panel.lines for mark in line.marks]
    entries = [*styles.values(), _LINEAR, _BOUND]
    entries += [_BAR] if any(mark.high > mark.low for mark in marks) else []
    entries += [_RING] if any(mark.is_noisy for mark in marks) else []
    return entries


def _draw_legend(figure: Figure, entries: Sequence[_LineStyle], title: str) -> None:
    """Draw one legend for all panels, outside them so that no line crosses it, as wide as the picture allows."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **entry) for entry in entries]
    title = textwrap.fill(title, int(figure.get_figwidth() * _CHARACTERS_PER_INCH))
    for columns in range(len(entries), 0, -1):
        legend = figure.legend(
            handles=handles, loc="outside upper left", ncols=columns, title=title, alignment="left", columnspacing=1.5
        )
        if columns == 1 or legend.get_window_extent().width < figure.bbox.width:
            return
        legend.remove()
