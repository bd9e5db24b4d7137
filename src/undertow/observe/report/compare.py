"""Compares two results: which points became faster, which slower, and which are too noisy to tell.

In: results before and after.  Out: one `Change` for each point, with the verdict and its reason.

The rule: the noise between two points is the largest of
- the sum of their notches, which are the uncertainties of their medians;
- the disagreement of either point, by which its repeated measurements differed;
- 0.1 %, below which a difference does not matter.
A difference beyond the noise is FASTER or SLOWER.  Noise above 5 % means that the machine was busy: then the difference
must be beyond twice the noise, and is TOO_NOISY otherwise.  All other differences are SAME.
Pure; swapping before and after swaps the verdict.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from rich.table import Table

from undertow.observe.report.columns import COLUMNS, choose_columns, describe_common
from undertow.observe.report.points import NOISE, Point, Results, find_notch
from undertow.observe.report.safe_text import Text
from undertow.observe.report.table import add_column, start_table
from undertow.units import ABSENT, format_change, format_ms_figure, format_percent

_RESOLUTION = 0.001
_NOISY_TWICE = 2.0


class Verdict(enum.Enum):
    """Verdict on one point; the value is its text."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    TOO_NOISY = "too noisy"
    GONE = "gone"  # only in the results before
    NEW = "new"  # only in the results after


_STYLES = {Verdict.FASTER: "green", Verdict.SLOWER: "bold red", Verdict.TOO_NOISY: "yellow"}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of one point before and after."""

    before: Point | None
    after: Point | None
    ratio: float | None  # iteration time after / before; None if one of them is missing
    verdict: Verdict
    reason: str

    @property
    def point(self) -> Point:
        """The point after, or else before; both have the same model, hosts, bandwidth and system."""
        point = self.after or self.before
        assert point is not None, "a change has a point"
        return point


def compare(before: Results, after: Results) -> list[Change]:
    """Compare every point of both results, in the order of `before`; new ones come last."""
    old, new = _number(before.points), _number(after.points)
    keys = [*old, *(key for key in new if key not in old)]
    return [_judge(old.get(key), new.get(key)) for key in keys]


def list_differences(before: Results, after: Results) -> list[str]:
    """List differences of machine and versions, because their times are hard to compare."""
    return [
        *_describe_differences("machine", before.machine, after.machine),
        *_describe_differences("version", before.versions, after.versions),
    ]


def make_comparison_table(changes: Sequence[Change], *, notes: Sequence[str] = ()) -> Table:
    """Make a table with one row for each change, and the notes (see `list_differences`) below."""
    points = [change.point for change in changes]
    columns = [c for c in choose_columns(points) if c.words is not None or c in _NAMES]
    table = start_table("", "\n".join(filter(None, (describe_common(points), *notes))))
    for column in columns:
        add_column(table, column, points)
    for heading in ("before,\nms", "after,\nms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("reason")
    for change, point in zip(changes, points, strict=True):
        names = (Text(column.show(point)) for column in columns)
        verdict = Text(change.verdict.value, _STYLES.get(change.verdict, ""))
        table.add_row(*names, _show_time(change.before), _show_time(change.after), verdict, Text(change.reason))
    return table


_NAMES = tuple(column for column in COLUMNS if column.heading in ("Gbit/s", "system"))
_Key = tuple[object, ...]


def _number(points: Sequence[Point]) -> dict[_Key, Point]:
    """Return points by model, hosts, bandwidth and system, and a number that tells points with equal ones apart."""
    found: dict[_Key, Point] = {}
    seen: Counter[_Key] = Counter()
    for point in points:
        key = (point.model, point.hosts, point.bandwidth_gbit, point.scale, point.slowdown, point.system, point.batch)
        found[*key, seen[key]] = point
        seen[key] += 1
    return found


def _judge(before: Point | None, after: Point | None) -> Change:
    if before is None or after is None:
        verdict, reason = (Verdict.NEW, "only after") if before is None else (Verdict.GONE, "only before")
        return Change(before=before, after=after, ratio=None, verdict=verdict, reason=reason)
    verdict, reason = _weigh(before, after)
    if before.origin != after.origin:
        reason += f"; {before.origin} before, {after.origin} after"
    ratio = after.iteration_s / before.iteration_s
    return Change(before=before, after=after, ratio=ratio, verdict=verdict, reason=reason)


def _weigh(before: Point, after: Point) -> tuple[Verdict, str]:
    difference_s = after.iteration_s - before.iteration_s
    shorter_s = min(before.iteration_s, after.iteration_s)
    noise_s = max(_find_noise(before, after), _RESOLUTION * shorter_s)
    is_busy = noise_s > NOISE * shorter_s
    margin = "twice the noise" if is_busy else "the noise"
    is_beyond = abs(difference_s) > noise_s * (_NOISY_TWICE if is_busy else 1.0)
    # The verdict compares seconds, because a share depends on which of the two points it refers to.
    share, noise = difference_s / before.iteration_s, noise_s / before.iteration_s
    reason = f"{format_change(share)}, {'beyond' if is_beyond else 'within'} {margin} of {format_percent(noise, 1)}"
    if is_beyond:
        return (Verdict.SLOWER if difference_s > 0 else Verdict.FASTER), reason
    return (Verdict.TOO_NOISY if is_busy else Verdict.SAME), reason


def _find_noise(before: Point, after: Point) -> float:
    spread_s = sum(find_notch(p.iteration_low_s, p.iteration_high_s, steps=p.steps) for p in (before, after))
    return max(spread_s, *(point.disagreement * point.iteration_s for point in (before, after)))


def _describe_differences(kind: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = dict.fromkeys((*before, *after))
    pairs = ((name, before.get(name, ABSENT), after.get(name, ABSENT)) for name in names)
    return [f"{kind} differs: {name} {old} before, {new} after" for name, old, new in pairs if old != new]


def _show_time(point: Point | None) -> Text:
    return Text(ABSENT if point is None else format_ms_figure(point.iteration_s))
