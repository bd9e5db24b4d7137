"""Whom the waiting belongs to: every nanosecond of it is put down to one name.

In: segments of waiting, and when results arrived.  Out: nanoseconds by tensor, or by reason where it was for none.
A wait at the gate of a tensor is that tensor's.  A wait for everything (the end of backward without gates, which asks
for one tensor after the other) is put down piece by piece: what passed until a result arrived belongs to what arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from undertow.timeline.arrivals import Arrivals
from undertow.timeline.model import Lane, Span
from undertow.timeline.spending import Segment, Spent
from undertow.trace.notes import AT_THE_END, AT_THE_GATE

OTHER = "something else"
# What is left when the last result has arrived.
WAKING = "the training thread to wake up"


def share_out(segments: Iterable[Segment], arrivals: Arrivals) -> dict[str, int]:
    """Their sum is that of the segments, to the nanosecond."""
    shares: dict[str, int] = {}
    for segment in segments:
        if segment.spent is Spent.WAIT:
            for name, length_ns in _share(segment, arrivals):
                shares[name] = shares.get(name, 0) + length_ns
    return shares


def find_gates(spans: Sequence[Span]) -> bool | None:
    """Whether the next forward pass starts before all gradients are there; None if nothing tells."""
    reasons = {span.reason for span in spans if span.cat == Lane.WAIT}
    if AT_THE_GATE in reasons:
        return True
    if AT_THE_END in reasons or any(span.cat == Lane.OPTIMIZER for span in spans):
        return False
    return True if any(span.cat == Lane.APPLY for span in spans) else None


def _share(segment: Segment, arrivals: Arrivals) -> Iterator[tuple[str, int]]:
    span = segment.span
    assert span is not None
    if span.reason == AT_THE_GATE and span.tensors:
        yield span.tensors[0], segment.length_ns
        return
    now_ns = segment.begin_ns
    for arrival in arrivals.between(segment.begin_ns, segment.end_ns):
        is_awaited = span.reason != AT_THE_END or arrivals.gradients.intersection(arrival.tensors)
        if arrival.tensors and is_awaited:
            yield arrival.tensors[0], arrival.time_ns - now_ns
            now_ns = arrival.time_ns
    name = span.reason or OTHER
    yield (WAKING if now_ns > segment.begin_ns else name), segment.end_ns - now_ns
