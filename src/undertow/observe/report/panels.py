"""Lays out a picture before it is drawn: panels, lines and the position of each mark.

In: points.  Out: one `Panel` for each model and number of hosts, with throughput over bandwidth; if the hosts vary and
the bandwidth does not, throughput over hosts.  Pure, and without any drawing library.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from undertow.observe.report.columns import describe_common, describe_link, show_bandwidth
from undertow.observe.report.points import Point

# Distance of unshaped points from the largest bandwidth: a share of the axis, and at least a factor.
_APART = 0.18
_APART_AT_LEAST = 1.5
# Margin on both sides of the only position on the axis, as a factor.
_ALONE = 1.6
# Labels closer than this share of the axis would overlap.
_CLOSE = 0.045


class Axis(enum.Enum):
    """Horizontal axis of a panel; the value is its label."""

    BANDWIDTH = "bandwidth of each host, Gbit/s"
    HOSTS = "hosts"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point in a panel: throughput in samples/s, at the median and at the quartiles of the steps."""

    x: float
    y: float
    low: float
    high: float
    is_noisy: bool
    is_apart: bool  # unshaped among shaped ones, so not joined to the line


@dataclass(frozen=True, kw_only=True)
class Line:
    """Line of one system, measured or simulated."""

    system: str
    origin: str
    marks: tuple[Mark, ...]  # from left to right


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A pair of axes, with everything drawn on it."""

    title: str  # what distinguishes it from the other panels
    axis: Axis
    lines: tuple[Line, ...]
    linear: tuple[tuple[float, float], ...]  # hosts times the throughput of one worker
    bound: tuple[tuple[float, float], ...]  # throughput at the lower bound of a step
    limits: tuple[float, float]
    ticks: dict[float, str]
    apart: float | None  # where the unshaped points begin


def make_panels(points: Sequence[Point]) -> list[Panel]:
    """Make panels; points with different batches or scales get different panels, because no line may join them."""
    axis = choose_axis(points)
    panels: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        key = (point.hosts,) if axis is Axis.BANDWIDTH else ()
        panels.setdefault((point.model, *key, point.batch, point.scale, point.slowdown), []).append(point)
    return [_make_panel(members, axis, describe_common(members, among=points)) for members in panels.values()]


def make_title(points: Sequence[Point]) -> str:
    """Return what all panels have in common."""
    common = describe_common(points)
    if choose_axis(points) is Axis.BANDWIDTH:
        return common
    return f"{common}, {describe_link(points[0].bandwidth_gbit)}"


def choose_axis(points: Iterable[Point]) -> Axis:
    """Choose the hosts if only they vary, else the bandwidth."""
    hosts = {point.hosts for point in points}
    bandwidths = {point.bandwidth_gbit for point in points}
    return Axis.HOSTS if len(hosts) > 1 and len(bandwidths) == 1 else Axis.BANDWIDTH


def _make_panel(points: Sequence[Point], axis: Axis, title: str) -> Panel:
    position = _choose_positions(points, axis)
    limits = _choose_limits({position(point) for point in points}, axis)
    shaped = [point for point in points if point.is_shaped or axis is Axis.HOSTS]
    is_split = axis is Axis.BANDWIDTH and 0 < len(shaped) < len(points)
    return Panel(
        title=title,
        axis=axis,
        lines=_make_lines(points, position, is_split=is_split),
        linear=_make_reference(points, position, lambda point: point.compute_s, limits, statistics.median),
        bound=_make_reference(shaped, position, lambda point: point.bound_s, limits, max),
        limits=limits,
        ticks=_choose_ticks(points, position, axis, limits),
        apart=_find_split(points, position) if is_split else None,
    )


def _choose_positions(points: Sequence[Point], axis: Axis) -> Callable[[Point], float]:
    """Return a function from a point to its position; unshaped points have no bandwidth and are on the right."""
    if axis is Axis.HOSTS:
        return lambda point: float(point.hosts)
    shaped = [point.bandwidth_gbit for point in points if point.bandwidth_gbit is not None] or [1.0]
    factor = max(_APART_AT_LEAST, (max(shaped) / min(shaped)) ** _APART)
    return lambda point: max(shaped) * factor if point.bandwidth_gbit is None else point.bandwidth_gbit


def _choose_limits(positions: set[float], axis: Axis) -> tuple[float, float]:
    low, high = min(positions), max(positions)
    if axis is Axis.HOSTS:
        margin = (high - low) * 0.06 or 1.0
        return low - margin, high + margin
    factor = (high / low) ** 0.06 if high > low else _ALONE
    return low / factor, high * factor


def _make_lines(points: Sequence[Point], position: Callable[[Point], float], *, is_split: bool) -> tuple[Line, ...]:
    members: dict[tuple[str, str], list[Mark]] = {}
    for point in points:
        mark = Mark(
            x=position(point),
            y=point.samples_per_s,
            low=_throughput(point, point.iteration_high_s),
            high=_throughput(point, point.iteration_low_s),
            is_noisy=point.is_noisy,
            is_apart=is_split and not point.is_shaped,
        )
        members.setdefault((point.system, point.origin), []).append(mark)
    return tuple(
        Line(system=system, origin=origin, marks=tuple(sorted(marks, key=lambda mark: mark.x)))
        for (system, origin), marks in members.items()
    )


def _make_reference(
    points: Sequence[Point],
    position: Callable[[Point], float],
    time_s: Callable[[Point], float],
    limits: tuple[float, float],
    choose: Callable[[list[float]], float],
) -> tuple[tuple[float, float], ...]:
    """Make a reference line; `choose` picks one of the systems' values, which may differ slightly.

    Its points are joined by straight lines, like those of the systems: an exact curve would run below a straight line
    that joins two points on it.
    """
    heights: dict[float, list[float]] = {}
    for point in points:
        heights.setdefault(position(point), []).append(_throughput(point, time_s(point)))
    line = [(x, choose(heights[x])) for x in sorted(heights)]
    if len(line) == 1:  # a single point is drawn as a line across the panel
        line = [(x, line[0][1]) for x in limits]
    return tuple(line)


def _throughput(point: Point, time_s: float) -> float:
    return point.hosts * point.batch / time_s


def _choose_ticks(
    points: Sequence[Point], position: Callable[[Point], float], axis: Axis, limits: tuple[float, float]
) -> dict[float, str]:
    """Label every position of a point, except those that would overlap a neighbour's label."""
    names = {position(p): str(p.hosts) if axis is Axis.HOSTS else show_bandwidth(p) for p in points}
    distance: Callable[[float], float] = float if axis is Axis.HOSTS else math.log
    least = _CLOSE * (distance(limits[1]) - distance(limits[0]))
    ticks: dict[float, str] = {}
    for x in sorted(names, reverse=True):  # the rightmost position is always labelled
        if not ticks or distance(min(ticks)) - distance(x) >= least:
            ticks[x] = names[x]
    return ticks


def _find_split(points: Sequence[Point], position: Callable[[Point], float]) -> float:
    last = max(position(point) for point in points if point.is_shaped)
    first = min(position(point) for point in points if not point.is_shaped)
    return math.sqrt(last * first)
