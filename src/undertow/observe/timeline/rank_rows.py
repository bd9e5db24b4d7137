"""Figures of each rank: its time, the use of its link, and whether the other ranks wait for it.

In: how each rank spent its steps, and its wires.  Out: rows, stragglers, slow links; bytes, busy times and rates of the
links, over all counted steps and during one step.
A link carries both directions at once, so they are counted separately.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence

import msgspec

from undertow.observe.timeline.run_trace import RankTrace, Step, Wire
from undertow.observe.timeline.thread_time import TimeUse

# A rank is a straggler if its compute takes more than this multiple of the median of the others.
SLOWER = 1.10
# A link is slow if it carries less than this share of the median of the others.
SLOW_LINK = 0.8
Interval = tuple[int, int]


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one rank over the counted steps; `spent_ns` adds up to exactly `step_ns`."""

    rank: int
    host: str
    steps: int
    step_ns: int
    spent_ns: dict[TimeUse, int]
    idle_wait_ns: int  # waiting while this rank's link was idle
    link: LinkUse

    def per_step(self, use: TimeUse) -> float:
        """Return the nanoseconds of this use in an average step."""
        return self.spent_ns[use] / self.steps if self.steps else 0.0


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that computes longer than the median of the others, per step."""

    rank: int
    host: str
    compute_ns: float
    others_ns: float

    @property
    def excess_ns(self) -> float:
        return self.compute_ns - self.others_ns


class SlowLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that carries less than the median of the others."""

    rank: int
    host: str
    bytes_per_s: float
    others_bytes_per_s: float


def find_stragglers(rows: Sequence[RankRow]) -> list[Straggler]:
    """Return stragglers, the slowest first."""
    found = []
    for row in rows:
        others = [other.per_step(TimeUse.COMPUTE) for other in rows if other is not row]
        if not others or not row.steps:
            continue
        compute_ns, others_ns = row.per_step(TimeUse.COMPUTE), statistics.median(others)
        if compute_ns > SLOWER * others_ns:
            found.append(Straggler(rank=row.rank, host=row.host, compute_ns=compute_ns, others_ns=others_ns))
    return sorted(found, key=lambda straggler: -straggler.compute_ns)


def find_slow_links(rows: Sequence[RankRow]) -> list[SlowLink]:
    """Return slow links, the slowest first."""
    rates = {row.rank: row.link.bytes_per_s for row in rows if row.link.bytes_per_s}
    found = []
    for row in rows:
        others = [rate for rank, rate in rates.items() if rank != row.rank]
        rate = rates.get(row.rank)
        if rate and others and rate < SLOW_LINK * statistics.median(others):
            slow = SlowLink(
                rank=row.rank, host=row.host, bytes_per_s=rate, others_bytes_per_s=statistics.median(others)
            )
            found.append(slow)
    return sorted(found, key=lambda link: link.bytes_per_s)


class LinkUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one rank's link in the counted steps."""

    out_bytes: int
    in_bytes: int
    busy_ns: int  # time in which a slice was on the link, in either direction
    time_ns: int  # of the steps
    bytes_per_s: float | None  # measured rate, each way

    @property
    def share(self) -> float | None:
        """Return the bytes in the busier direction over those it could have carried; None if the rate is unknown."""
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
    """Return the intervals of these steps in which a slice was on its way to or from this rank."""
    wires = sorted((wire.begin_ns, wire.end_ns) for wire in (*trace.outs, *trace.ins))
    windows = sorted((trace.steps[number].begin_ns, trace.steps[number].end_ns) for number in steps)
    return intersect(unite(wires), unite(windows))


def unite(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge overlapping intervals, which are sorted by start time."""
    united: list[Interval] = []
    for begin, end in intervals:
        if united and begin <= united[-1][1]:
            united[-1] = united[-1][0], max(united[-1][1], end)
        else:
            united.append((begin, end))
    return united


def intersect(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Return the intersection of two lists of intervals, each in order and without overlaps."""
    common = []
    start = 0
    for begin, end in first:
        while start < len(second) and second[start][1] <= begin:
            start += 1
        index = start
        while index < len(second) and second[index][0] < end:
            common.append((max(begin, second[index][0]), min(end, second[index][1])))
            index += 1
    return common


def sample_rates(wires: Iterable[Wire], step: Step, bins: int) -> list[float]:
    """Return bytes per second in each of `bins` equal parts of the step; a slice is spread over its duration."""
    width_ns = step.length_ns / bins
    sizes = [0.0] * bins
    for wire in wires:
        if wire.end_ns <= step.begin_ns or wire.begin_ns >= step.end_ns:
            continue
        begin, end = ((time - step.begin_ns) / width_ns for time in (wire.begin_ns, wire.end_ns))
        _spread(sizes, begin, end, wire.size_bytes)
    return [size / (width_ns / 1e9) for size in sizes]


def _spread(sizes: list[float], begin: float, end: float, size_bytes: int) -> None:
    """Spread bytes evenly over the bins from `begin` to `end`; bytes outside of all bins do not count."""
    if end <= begin:
        sizes[min(max(0, int(begin)), len(sizes) - 1)] += size_bytes
        return
    for index in range(max(0, int(begin)), min(len(sizes), int(end) + 1)):
        sizes[index] += size_bytes * max(0.0, min(end, index + 1) - max(begin, index)) / (end - begin)
