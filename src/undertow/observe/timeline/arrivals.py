"""The arrivals of results at one rank, which end its waits, and the tensors that each wait was for.

In: one rank's wires, its shard's sums and those of torch; segments of waiting.  Out: arrivals by time, for all tensors
or for one; nanoseconds of waiting by tensor, or by reason if no tensor was waited for.
A result comes over a link, from the rank's own shard, or from torch's process group.  A gathered tensor arrives as the
contributions of the other ranks, without a shard.
Every nanosecond of waiting counts for one name.  A wait at the gate of a tensor counts for that tensor.  A wait for all
tensors (at the end of backward without gates) is divided: the time until a result arrived counts for the tensor that
arrived.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from undertow.observe.timeline.run_trace import RankTrace, Span, SpanKind, Wire
from undertow.observe.timeline.thread_time import Segment, TimeUse
from undertow.tracing.events import AT_THE_END, AT_THE_GATE

OTHER = "something else"
# The name of the time after the last result has arrived.
WAKING = "the training thread to wake up"


class Arrival(NamedTuple):
    """A result that arrived; exactly one of the last three fields is set, and gives its origin."""

    time_ns: int
    tensors: tuple[str, ...]
    wire: Wire | None = None
    summed: Span | None = None
    reduced: Span | None = None


class Arrivals:
    """Arrivals at one rank, looked up by time."""

    def __init__(self, trace: RankTrace) -> None:
        self._all = sorted(_list_arrivals(trace), key=lambda arrival: arrival.time_ns)
        self._times = [arrival.time_ns for arrival in self._all]
        self.gradients = {tensor for span in trace.thread if span.cat == SpanKind.HOOK for tensor in span.tensors}
        self._by_tensor: dict[str, list[Arrival]] = defaultdict(list)
        for arrival in self._all:
            for tensor in arrival.tensors:
                self._by_tensor[tensor].append(arrival)

    def between(self, begin_ns: int, end_ns: int) -> list[Arrival]:
        """Return the arrivals after the first time, up to and including the second."""
        first = bisect.bisect_right(self._times, begin_ns)
        return self._all[first : bisect.bisect_right(self._times, end_ns)]

    def find_last(self, begin_ns: int, end_ns: int, tensor: str = "") -> Arrival | None:
        """Return the last arrival between two times, of this tensor or of any."""
        if not tensor:
            found = self.between(begin_ns, end_ns)
            return found[-1] if found else None
        known = self._by_tensor.get(tensor, [])
        index = bisect.bisect_right(known, end_ns, key=lambda arrival: arrival.time_ns) - 1
        return known[index] if index >= 0 and known[index].time_ns > begin_ns else None


def _list_arrivals(trace: RankTrace) -> Iterator[Arrival]:
    for wire in trace.ins:
        if wire.kind in ("result", "value") or wire.key in trace.gathered:
            yield Arrival(wire.end_ns, wire.tensors, wire=wire)
    for summed in trace.shard:
        yield Arrival(summed.end_ns, summed.tensors, summed=summed)
    for reduced in trace.reduced:
        yield Arrival(reduced.end_ns, reduced.tensors, reduced=reduced)


def divide_waits(segments: Iterable[Segment], arrivals: Arrivals) -> dict[str, int]:
    """Divide the waiting in these segments by name; the sum is exact to the nanosecond."""
    waited_ns: dict[str, int] = {}
    for segment in segments:
        if segment.use is TimeUse.WAIT:
            for name, length_ns in _divide(segment, arrivals):
                waited_ns[name] = waited_ns.get(name, 0) + length_ns
    return waited_ns


def find_gates(trace: RankTrace, steps: Collection[int]) -> bool | None:
    """Return whether the next forward pass starts before all gradients have arrived; None if unknown."""
    spans = [span for span in trace.thread if span.step in steps]
    reasons = {span.reason for span in spans if span.cat == SpanKind.WAIT}
    if AT_THE_GATE in reasons:
        return True
    if AT_THE_END in reasons or any(span.cat == SpanKind.OPTIMIZER for span in spans):
        return False
    return True if any(span.cat == SpanKind.APPLY for span in spans) else None


def _divide(segment: Segment, arrivals: Arrivals) -> Iterator[tuple[str, int]]:
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
