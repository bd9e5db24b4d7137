"""What a picture shows, before anything is drawn: panels, lines and where each mark stands.

In: points.  Out: one `Panel` for each model and number of hosts, with throughput over bandwidth.
If the hosts vary and the bandwidth does not, then throughput over hosts.  Pure, and without
any drawing library.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from undertow.report.columns import UNSHAPED, describe_common, show_bandwidth
from undertow.report.points import Point

# Where unshaped points stand beyond the largest bandwidth: a part of the axis, and at least a factor.
_APART = 0.18
_APART_AT_LEAST = 1.5
# A single place on the axis gets this much room on both sides.
_ALONE = 1.6
# Marks of the axis that are closer than this part of it would write over each other.
_CLOSE = 0.045


class Axis(enum.Enum):
    """What a panel shows throughput over; the value is its label."""

    BANDWIDTH = "bandwidth of each host, Gbit/s"
    HOSTS = "hosts"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One point in a panel: throughput in samples/s, with that of the quartiles of the steps."""

    x: float
    y: float
    low: float
    high: float
    is_noisy: bool
    is_apart: bool  # unshaped, among others that are shaped: no line leads to it


@dataclass(frozen=True, kw_only=True)
class Line:
    """One system, measured or simulated."""

    system: str
    origin: str
    marks: tuple[Mark, ...]  # from left to right


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str  # what tells it apart from the other panels
    axis: Axis
    lines: tuple[Line, ...]
    linear: tuple[tuple[float, float], ...]  # hosts * one worker
    bound: tuple[tuple[float, float], ...]  # what the lower bound of a step allows
    limits: tuple[float, float]
    ticks: dict[float, str]
    apart: float | None  # where the unshaped points begin


def make_panels(points: Sequence[Point]) -> list[Panel]:
    """Points that one line cannot join fairly (another batch or scale) are in different panels."""
    axis = choose_axis(points)
    panels: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        key = (point.hosts,) if axis is Axis.BANDWIDTH else ()
        panels.setdefault((point.model, *key, point.batch, point.scale, point.slowdown), []).append(point)
    return [_make_panel(members, axis, describe_common(members, among=points)) for members in panels.values()]


def make_title(points: Sequence[Point]) -> str:
    """What all panels have in common."""
    common = describe_common(points)
    if choose_axis(points) is Axis.BANDWIDTH:
        return common
    bandwidth = show_bandwidth(points[0])
    return f"{common}, {bandwidth if bandwidth == UNSHAPED else f'{bandwidth} Gbit/s'}"


def choose_axis(points: Iterable[Point]) -> Axis:
    """Hosts if they are all that varies, else bandwidth."""
    hosts = {point.hosts for point in points}
    bandwidths = {point.bandwidth_gbit for point in points}
    return Axis.HOSTS if len(hosts) > 1 and len(bandwidths) == 1 else Axis.BANDWIDTH


def _make_panel(points: Sequence[Point], axis: Axis, title: str) -> Panel:
    place = _choose_places(points, axis)
    limits = _choose_limits({place(point) for point in points}, axis)
    shaped = [point for point in points if point.is_shaped or axis is Axis.HOSTS]
    is_split = axis is Axis.BANDWIDTH and 0 < len(shaped) < len(points)
    return Panel(
        title=title,
        axis=axis,
        lines=_make_lines(points, place, is_split=is_split),
        linear=_follow(points, place, lambda point: point.compute_s, limits, statistics.median),
        bound=_follow(shaped, place, lambda point: point.bound_s, limits, max),
        limits=limits,
        ticks=_choose_ticks(points, place, axis, limits),
        apart=_find_split(points, place) if is_split else None,
    )


def _choose_places(points: Sequence[Point], axis: Axis) -> Callable[[Point], float]:
    """Where a point stands on the axis; unshaped ones have no bandwidth, and stand to the right of all others."""
    if axis is Axis.HOSTS:
        return lambda point: float(point.hosts)
    shaped = [point.bandwidth_gbit for point in points if point.bandwidth_gbit is not None] or [1.0]
    factor = max(_APART_AT_LEAST, (max(shaped) / min(shaped)) ** _APART)
    return lambda point: max(shaped) * factor if point.bandwidth_gbit is None else point.bandwidth_gbit


def _choose_limits(places: set[float], axis: Axis) -> tuple[float, float]:
    low, high = min(places), max(places)
    if axis is Axis.HOSTS:
        room = (high - low) * 0.06 or 1.0
        return low - room, high + room
    factor = (high / low) ** 0.06 if high > low else _ALONE
    return low / factor, high * factor


def _make_lines(points: Sequence[Point], place: Callable[[Point], float], *, is_split: bool) -> tuple[Line, ...]:
    members: dict[tuple[str, str], list[Mark]] = {}
    for point in points:
        mark = Mark(
            x=place(point),
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


def _follow(
    points: Sequence[Point],
    place: Callable[[Point], float],
    time_s: Callable[[Point], float],
    limits: tuple[float, float],
    choose: Callable[[list[float]], float],
) -> tuple[tuple[float, float], ...]:
    """A line of reference.  Systems may have taken slightly different times for it, or send different bytes.

    It joins its points straight, as the systems' lines do: a bound that is exact in between would run
    below a straight line that joins two points on it.
    """
    heights: dict[float, list[float]] = {}
    for point in points:
        heights.setdefault(place(point), []).append(_throughput(point, time_s(point)))
    line = [(x, choose(heights[x])) for x in sorted(heights)]
    if len(line) == 1:  # one place makes no line: across the panel
        line = [(x, line[0][1]) for x in limits]
    return tuple(line)


def _throughput(point: Point, time_s: float) -> float:
    return point.hosts * point.batch / time_s


def _choose_ticks(
    points: Sequence[Point], place: Callable[[Point], float], axis: Axis, limits: tuple[float, float]
) -> dict[float, str]:
    """Every place that a point stands at, but those that would write over a neighbour."""
    names = {place(p): str(p.hosts) if axis is Axis.HOSTS else show_bandwidth(p) for p in points}
    distance: Callable[[float], float] = float if axis is Axis.HOSTS else math.log
    least = _CLOSE * (distance(limits[1]) - distance(limits[0]))
    ticks: dict[float, str] = {}
    for x in sorted(names, reverse=True):  # the largest, and `unshaped`, always have theirs
        if not ticks or distance(min(ticks)) - distance(x) >= least:
            ticks[x] = names[x]
    return ticks


def _find_split(points: Sequence[Point], place: Callable[[Point], float]) -> float:
    last = max(place(point) for point in points if point.is_shaped)
    first = min(place(point) for point in points if not point.is_shaped)
    return math.sqrt(last * first)
