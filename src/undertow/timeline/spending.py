"""Where a step's time went on one rank: every nanosecond is one thing, and all of them together are the step.

In: the spans of a training thread, and the windows of its steps.  Out: segments that follow each other without a gap,
and their sums.  Spans nest: what began last counts, so a wait inside of a layer's forward is a wait.
Compute is what is left when everything that has a name of its own is taken away: layers, and the script's own work
between them.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from undertow.timeline.model import Lane, RankTrace, Span, Step


class Spent(enum.StrEnum):
    """What a moment of a training thread is."""

    COMPUTE = "compute"
    WAIT = "waiting"
    TURN = "waiting for the turn"
    HOOK = "handing over"
    APPLY = "applying"
    OPTIMIZER = "optimizer"


_SPENT = {
    Lane.FORWARD: Spent.COMPUTE,
    Lane.BACKWARD: Spent.COMPUTE,
    Lane.HOOK: Spent.HOOK,
    Lane.WAIT: Spent.WAIT,
    Lane.APPLY: Spent.APPLY,
    Lane.OPTIMIZER: Spent.OPTIMIZER,
    Lane.TURN_WAIT: Spent.TURN,
}


class Segment(NamedTuple):
    """Between two changes; `span` is None where nothing was recorded."""

    begin_ns: int
    end_ns: int
    span: Span | None

    @property
    def spent(self) -> Spent:
        return Spent.COMPUTE if self.span is None else _SPENT[Lane(self.span.cat)]

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.begin_ns


class Day:
    """All that one training thread did, as segments that can be asked for by time."""

    def __init__(self, trace: RankTrace) -> None:
        steps = trace.steps.values()
        begin_ns = min((step.begin_ns for step in steps), default=0)
        end_ns = max((step.end_ns for step in steps), default=0)
        self._segments = list(_flatten(trace.lane, begin_ns, end_ns))
        self._begins = [segment.begin_ns for segment in self._segments]

    def cut(self, begin_ns: int, end_ns: int) -> Iterator[Segment]:
        """What happened between these two, without a gap."""
        place = max(0, bisect.bisect_right(self._begins, begin_ns) - 1)
        for segment in self._segments[place : bisect.bisect_left(self._begins, end_ns)]:
            first_ns, last_ns = max(segment.begin_ns, begin_ns), min(segment.end_ns, end_ns)
            if last_ns > first_ns:
                yield Segment(first_ns, last_ns, segment.span)

    def find_before(self, time_ns: int) -> Segment | None:
        """What was done just before this moment."""
        place = bisect.bisect_left(self._begins, time_ns) - 1
        if place < 0 or self._segments[place].end_ns < time_ns:
            return None
        return Segment(self._segments[place].begin_ns, time_ns, self._segments[place].span)

    def add_up(self, step: Step) -> dict[Spent, int]:
        """Nanoseconds of each; together exactly the step."""
        return add_up(self.cut(step.begin_ns, step.end_ns))


def add_up(segments: Iterable[Segment]) -> dict[Spent, int]:
    sums = dict.fromkeys(Spent, 0)
    for segment in segments:
        sums[segment.spent] += segment.length_ns
    return sums


def _flatten(spans: Sequence[Span], begin_ns: int, end_ns: int) -> Iterator[Segment]:
    """The spans are in the order of their begin; at every moment the one that began last counts."""
    now_ns = begin_ns
    open_spans: list[Span] = []
    for span in [*spans, None]:
        until_ns = end_ns if span is None else min(max(span.begin_ns, begin_ns), end_ns)
        while open_spans and now_ns < until_ns:
            stop_ns = min(open_spans[-1].end_ns, until_ns)
            if stop_ns > now_ns:
                yield Segment(now_ns, stop_ns, open_spans[-1])
                now_ns = stop_ns
            if open_spans[-1].end_ns <= now_ns:
                open_spans.pop()
        if now_ns < until_ns:
            yield Segment(now_ns, until_ns, None)
            now_ns = until_ns
        if span is not None:
            open_spans.append(span)
