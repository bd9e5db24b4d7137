"""When the results of one rank were there, and from where: what ends its waits.

In: one rank's wires, its shard's sums and torch's own.  Out: arrivals by time, for all tensors or for one.
A result comes over a link, out of the rank's own shard, or from torch's process group.  What is gathered comes as the
pieces of the others, and has no shard.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from undertow.timeline.model import Lane, RankTrace, Span, Wire


class Arrival(NamedTuple):
    """Exactly one of the three is not None."""

    time_ns: int
    tensors: tuple[str, ...]
    wire: Wire | None = None
    summed: Span | None = None
    reduced: Span | None = None


class Arrivals:
    """Of one rank."""

    def __init__(self, trace: RankTrace) -> None:
        self._all = sorted(_list_arrivals(trace), key=lambda arrival: arrival.time_ns)
        self._times = [arrival.time_ns for arrival in self._all]
        self.gradients = {tensor for span in trace.lane if span.cat == Lane.HOOK for tensor in span.tensors}
        self._of: dict[str, list[Arrival]] = defaultdict(list)
        for arrival in self._all:
            for tensor in arrival.tensors:
                self._of[tensor].append(arrival)

    def between(self, begin_ns: int, end_ns: int) -> list[Arrival]:
        """Those after the first moment and up to the second."""
        first = bisect.bisect_right(self._times, begin_ns)
        return self._all[first : bisect.bisect_right(self._times, end_ns)]

    def find_last(self, begin_ns: int, end_ns: int, tensor: str = "") -> Arrival | None:
        """The last one in this time: of this tensor, or of any."""
        if not tensor:
            found = self.between(begin_ns, end_ns)
            return found[-1] if found else None
        known = self._of.get(tensor, [])
        place = bisect.bisect_right(known, end_ns, key=lambda arrival: arrival.time_ns) - 1
        return known[place] if place >= 0 and known[place].time_ns > begin_ns else None


def _list_arrivals(trace: RankTrace) -> Iterator[Arrival]:
    for wire in trace.ins:
        if wire.kind in ("result", "value") or wire.key in trace.gathered:
            yield Arrival(wire.end_ns, wire.tensors, wire=wire)
    for summed in trace.shard:
        yield Arrival(summed.end_ns, summed.tensors, summed=summed)
    for reduced in trace.reduced:
        yield Arrival(reduced.end_ns, reduced.tensors, reduced=reduced)
