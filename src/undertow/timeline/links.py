"""How busy the links are: in all, while there is something to carry, and over the time of one step.

In: a rank's wires and its steps.  Out: bytes, busy times, and their course.
A link carries both ways at once, so each direction is looked at alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from undertow.timeline.model import RankTrace, Step, Wire

Interval = tuple[int, int]


class LinkUse(msgspec.Struct, frozen=True, kw_only=True):
    """Of one rank's link in the counted steps."""

    out_bytes: int
    in_bytes: int
    busy_ns: int  # something was on its way in one direction or the other
    time_ns: int  # of the steps
    bytes_per_s: float | None  # what it can carry each way, as measured

    @property
    def share(self) -> float | None:
        """Of what the busier direction could have carried; None if nobody measured it."""
        if not self.bytes_per_s or not self.time_ns:
            return None
        return max(self.out_bytes, self.in_bytes) / (self.bytes_per_s * self.time_ns / 1e9)


def measure_use(trace: RankTrace, steps: Collection[int]) -> LinkUse:
    return LinkUse(
        out_bytes=sum(wire.size_bytes for wire in trace.outs if wire.step in steps),
        in_bytes=sum(wire.size_bytes for wire in trace.ins if wire.step in steps),
        busy_ns=sum(end - begin for begin, end in find_busy(trace, steps)),
        time_ns=sum(trace.steps[number].length_ns for number in steps),
        bytes_per_s=trace.link_bytes_per_s,
    )


def find_busy(trace: RankTrace, steps: Collection[int]) -> list[Interval]:
    """When anything was on its way to or from this rank, in these steps."""
    wires = sorted((wire.begin_ns, wire.end_ns) for wire in (*trace.outs, *trace.ins))
    windows = sorted((trace.steps[number].begin_ns, trace.steps[number].end_ns) for number in steps)
    return intersect(unite(wires), unite(windows))


def unite(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time without overlaps; they come in the order of their begin."""
    united: list[Interval] = []
    for begin, end in intervals:
        if united and begin <= united[-1][1]:
            united[-1] = united[-1][0], max(united[-1][1], end)
        else:
            united.append((begin, end))
    return united


def intersect(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The time that is in both; each is without overlaps and in order."""
    common = []
    place = 0
    for begin, end in first:
        while place < len(second) and second[place][1] <= begin:
            place += 1
        here = place
        while here < len(second) and second[here][0] < end:
            common.append((max(begin, second[here][0]), min(end, second[here][1])))
            here += 1
    return common


def draw_course(wires: Iterable[Wire], step: Step, bins: int) -> list[float]:
    """Bytes per second in each of so many equal parts of the step; a slice's bytes are spread over its time."""
    width_ns = step.length_ns / bins
    sizes = [0.0] * bins
    for wire in wires:
        if wire.end_ns <= step.begin_ns or wire.begin_ns >= step.end_ns:
            continue
        begin, end = ((time - step.begin_ns) / width_ns for time in (wire.begin_ns, wire.end_ns))
        _spread(sizes, begin, end, wire.size_bytes)
    return [size / (width_ns / 1e9) for size in sizes]


def _spread(sizes: list[float], begin: float, end: float, size_bytes: int) -> None:
    """From `begin` to `end`, in bins; what is outside of them is not counted."""
    if end <= begin:
        sizes[min(max(0, int(begin)), len(sizes) - 1)] += size_bytes
        return
    for place in range(max(0, int(begin)), min(len(sizes), int(end) + 1)):
        sizes[place] += size_bytes * max(0.0, min(end, place + 1) - max(begin, place)) / (end - begin)
