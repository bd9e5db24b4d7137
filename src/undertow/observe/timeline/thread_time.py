"""Divides the time of a training thread: every nanosecond of a step has exactly one use.

In: the spans of a training thread, and its steps.  Out: segments without gaps, and their sums.
Spans nest, and the one that began last counts: a wait inside a layer's forward is a wait.  Compute is the time without
any other use: layers, and the script's work between them.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from undertow.observe.timeline.run_trace import RankTrace, Span, SpanKind


class TimeUse(enum.StrEnum):
    """Use of a training thread's time."""

    COMPUTE = "compute"
    WAIT = "waiting"
    TURN = "waiting for the turn"
    HOOK = "handing over"
    APPLY = "applying"
    OPTIMIZER = "optimizer"


_USES = {
    SpanKind.FORWARD: TimeUse.COMPUTE,
    SpanKind.BACKWARD: TimeUse.COMPUTE,
    SpanKind.HOOK: TimeUse.HOOK,
    SpanKind.WAIT: TimeUse.WAIT,
    SpanKind.APPLY: TimeUse.APPLY,
    SpanKind.OPTIMIZER: TimeUse.OPTIMIZER,
    SpanKind.TURN_WAIT: TimeUse.TURN,
}


class Segment(NamedTuple):
    """A period of one use; `span` is None where nothing was recorded."""

    begin_ns: int
    end_ns: int
    span: Span | None

    @property
    def use(self) -> TimeUse:
        return TimeUse.COMPUTE if self.span is None else _USES[SpanKind(self.span.cat)]

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.begin_ns


class ThreadTimeline:
    """The segments of one training thread, looked up by time."""

    def __init__(self, trace: RankTrace) -> None:
        steps = trace.steps.values()
        begin_ns = min((step.begin_ns for step in steps), default=0)
        end_ns = max((step.end_ns for step in steps), default=0)
        self._segments = list(_flatten(trace.thread, begin_ns, end_ns))
        self._begins = [segment.begin_ns for segment in self._segments]

    def cut(self, begin_ns: int, end_ns: int) -> Iterator[Segment]:
        """Yield the segments between two times, without gaps."""
        index = max(0, bisect.bisect_right(self._begins, begin_ns) - 1)
        for segment in self._segments[index : bisect.bisect_left(self._begins, end_ns)]:
            first_ns, last_ns = max(segment.begin_ns, begin_ns), min(segment.end_ns, end_ns)
            if last_ns > first_ns:
                yield Segment(first_ns, last_ns, segment.span)

    def find_before(self, time_ns: int) -> Segment | None:
        """Return the segment just before this time, cut off there."""
        index = bisect.bisect_left(self._begins, time_ns) - 1
        if index < 0 or self._segments[index].end_ns < time_ns:
            return None
        return Segment(self._segments[index].begin_ns, time_ns, self._segments[index].span)


def _flatten(spans: Sequence[Span], begin_ns: int, end_ns: int) -> Iterator[Segment]:
    """Cut spans, sorted by start time, into segments: at every moment the span that began last counts."""
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
