"""Finds the critical path: what a step really waited for, from its end back to its beginning, across all ranks.

In: a trace, one step.  Out: links without gaps between them.
The search goes back from the end of the step on the rank that ended it last.  Compute is its own cause.  A wait ended
because a result arrived; a shard sent the result when its sum was ready; the sum waited for the last contribution; a
rank sent that contribution when its gradient was final; and before that, its training thread computed.  Where the cause
is not in the trace (a file is missing, a slice has no counterpart), the path stays on its rank and names the cause as
unknown.
"""

from __future__ import annotations

import bisect
import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from undertow.observe.timeline.arrivals import Arrival, Arrivals
from undertow.observe.timeline.run_trace import RankTrace, Span, Trace, Wire, name_tensors
from undertow.observe.timeline.thread_time import Segment, ThreadTimeline, TimeUse

# A longer path would be a defect in the search.
MOST_LINKS = 100_000


class Cause(enum.StrEnum):
    """Cause of the time that a link of the path takes."""

    COMPUTE = "compute"
    APPLY = "applying and optimizer"
    TURN = "waiting for the turn"
    WIRE = "wire"
    QUEUE = "queue behind other slices"
    SHARD = "shard"
    ENGINE = "engine"
    REDUCE = "torch's process group"
    UNKNOWN = "cause not in the trace"


_OF_THREAD = {
    TimeUse.COMPUTE: Cause.COMPUTE,
    TimeUse.HOOK: Cause.COMPUTE,
    TimeUse.APPLY: Cause.APPLY,
    TimeUse.OPTIMIZER: Cause.APPLY,
    TimeUse.TURN: Cause.TURN,
    TimeUse.WAIT: Cause.UNKNOWN,
}


class PathLink(NamedTuple):
    """A link of the path on `rank`; `peer` is the other end of a wire."""

    cause: Cause
    rank: int
    begin_ns: int
    end_ns: int
    name: str = ""
    peer: int | None = None

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.begin_ns


class Pathfinder:
    """Finder of critical paths in one trace."""

    def __init__(self, trace: Trace, threads: Mapping[int, ThreadTimeline], arrivals: Mapping[int, Arrivals]) -> None:
        self._trace = trace
        self._threads = threads
        self._arrivals = arrivals
        self._causes = {rank: _RankCauses(known) for rank, known in trace.ranks.items()}

    def find(self, number: int) -> list[PathLink]:
        """Return the links in chronological order; together they cover the step of the rank that ended it last."""
        steps = {rank: trace.steps[number] for rank, trace in self._trace.ranks.items()}
        last = max(steps, key=lambda rank: (steps[rank].end_ns, -rank))
        floor_ns = steps[last].begin_ns
        links = list(self._walk(last, steps[last].end_ns, floor_ns))
        return join(clip(reversed(links), floor_ns))

    def _walk(self, rank: int, time_ns: int, floor_ns: int) -> Iterator[PathLink]:
        for _ in range(MOST_LINKS):
            if time_ns <= floor_ns:
                return
            segment = self._threads[rank].find_before(time_ns)
            if segment is None:
                yield PathLink(Cause.UNKNOWN, rank, floor_ns, time_ns, "before its first recorded step")
                return
            chain = [] if segment.use is not TimeUse.WAIT else list(self._explain(rank, segment))
            # A chain that did not lead back in time would repeat forever.
            if not chain or chain[-1].begin_ns >= time_ns:
                chain = [_as_link(rank, segment)]
            yield from chain
            rank, time_ns = chain[-1].rank, chain[-1].begin_ns

    def _explain(self, rank: int, wait: Segment) -> Iterator[PathLink]:
        """Yield the causes of the end of this wait, back to a gradient; nothing if they are not in the trace."""
        assert wait.span is not None
        tensor = wait.span.tensors[0] if wait.span.tensors else ""
        arrival = self._arrivals[rank].find_last(wait.span.begin_ns, wait.end_ns, tensor)
        if arrival is None:
            return
        yield PathLink(Cause.ENGINE, rank, arrival.time_ns, wait.end_ns, "wakes the training thread")
        if arrival.reduced is not None:
            began_ns = min(arrival.reduced.begin_ns, arrival.time_ns)
            yield PathLink(Cause.REDUCE, rank, began_ns, arrival.time_ns, name_tensors(arrival.tensors))
        elif arrival.summed is not None:
            yield from self._explain_sum(rank, arrival.summed, arrival.time_ns)
        else:
            yield from self._explain_result(rank, arrival)

    def _explain_result(self, rank: int, arrival: Arrival) -> Iterator[PathLink]:
        assert arrival.wire is not None
        yield from self._follow_wire(rank, arrival.wire)
        sender, queued_ns = arrival.wire.peer, _find_queued(arrival.wire)
        if queued_ns < 0 or sender not in self._causes:
            return
        if arrival.wire.kind == "push":  # gathered: there is no sum
            yield from self._follow_gradient(sender, arrival.wire.tensors, queued_ns)
            return
        summed = self._causes[sender].sums.get((arrival.wire.key, arrival.wire.round))
        if summed is not None and summed.begin_ns <= queued_ns:
            ended_ns = min(summed.end_ns, queued_ns)
            yield PathLink(Cause.ENGINE, sender, ended_ns, queued_ns, "answers")
            yield from self._explain_sum(sender, summed, ended_ns)

    def _explain_sum(self, rank: int, summed: Span, until_ns: int) -> Iterator[PathLink]:
        """Follow the last contribution to a sum: over the wire from another rank, or from this rank."""
        name = name_tensors(summed.tensors)
        push = self._causes[rank].find_last_push(summed.key, summed.round, until_ns)
        hook = self._causes[rank].find_hook(summed.tensors, until_ns)
        push_ns = -1 if push is None else push.end_ns
        hook_ns = -1 if hook is None else min(hook.end_ns, until_ns)
        cause_ns = max(push_ns, hook_ns)
        if cause_ns < 0:
            yield PathLink(Cause.SHARD, rank, summed.begin_ns, until_ns, name)
            return
        begin_ns = min(max(summed.begin_ns, cause_ns), until_ns)
        yield PathLink(Cause.SHARD, rank, begin_ns, until_ns, name)
        yield PathLink(Cause.ENGINE, rank, min(cause_ns, begin_ns), begin_ns, "starts the sum")
        if push is not None and push_ns >= hook_ns:
            yield from self._follow_wire(rank, push)
            if push.queued_ns >= 0:
                yield from self._follow_gradient(push.peer, push.tensors, _find_queued(push))

    def _follow_wire(self, rank: int, wire: Wire) -> Iterator[PathLink]:
        """Follow a slice from the arrival of its last byte back to when it was queued."""
        name = name_tensors(wire.tensors)
        if wire.sent_ns < 0:
            yield PathLink(Cause.WIRE, rank, wire.begin_ns, wire.end_ns, name, wire.peer)
            return
        sent_ns = min(wire.sent_ns, wire.end_ns)
        yield PathLink(Cause.WIRE, wire.peer, sent_ns, wire.end_ns, name, rank)
        if wire.queued_ns >= 0:
            yield PathLink(Cause.QUEUE, wire.peer, _find_queued(wire), sent_ns, name, rank)

    def _follow_gradient(self, rank: int, tensors: tuple[str, ...], until_ns: int) -> Iterator[PathLink]:
        causes = self._causes.get(rank)
        hook = None if causes is None else causes.find_hook(tensors, until_ns)
        if hook is not None:
            yield PathLink(Cause.ENGINE, rank, min(hook.end_ns, until_ns), until_ns, "takes the gradient over")


def _find_queued(wire: Wire) -> int:
    """Return when a slice was queued; at the latest, when it was sent or arrived, because the clocks may disagree."""
    return min(wire.queued_ns, wire.sent_ns, wire.end_ns)


class _RankCauses:
    """Possible causes on one rank, looked up by key or tensor."""

    def __init__(self, trace: RankTrace) -> None:
        self.sums = {(span.key, span.round): span for span in trace.shard}
        self._pushes: dict[tuple[int, int], list[Wire]] = defaultdict(list)
        for wire in trace.ins:
            if wire.kind == "push":
                self._pushes[wire.key, wire.round].append(wire)
        self._hooks: dict[str, list[Span]] = defaultdict(list)
        for span in trace.thread:
            if span.cat == "hook":
                for tensor in span.tensors:
                    self._hooks[tensor].append(span)

    def find_last_push(self, key: int, number: int, until_ns: int) -> Wire | None:
        known = [wire for wire in self._pushes.get((key, number), ()) if wire.end_ns <= until_ns]
        return max(known, key=lambda wire: wire.end_ns, default=None)

    def find_hook(self, tensors: Iterable[str], until_ns: int) -> Span | None:
        """Return the last hook of these tensors, because a slice with several tensors waits for all of them.

        The engine may take a gradient before the hook that hands it over has returned.
        """
        found = []
        for tensor in tensors:
            known = self._hooks.get(tensor, [])
            index = bisect.bisect_right(known, until_ns, key=lambda span: span.begin_ns) - 1
            found += known[index : index + 1] if index >= 0 else []
        return max(found, key=lambda span: span.end_ns, default=None)


def _as_link(rank: int, segment: Segment) -> PathLink:
    name = segment.span.name if segment.span is not None else ""
    return PathLink(_OF_THREAD[segment.use], rank, segment.begin_ns, segment.end_ns, name)


def clip(links: Iterable[PathLink], floor_ns: int) -> Iterator[PathLink]:
    """Cut off the time before the step, and leave out links without length."""
    for link in links:
        if link.end_ns > max(link.begin_ns, floor_ns):
            yield link._replace(begin_ns=max(link.begin_ns, floor_ns))


def join(links: Iterable[PathLink]) -> list[PathLink]:
    """Join neighbours of one cause on one rank, such as consecutive layers."""
    joined: list[PathLink] = []
    for link in links:
        last = joined[-1] if joined else None
        is_thread = link.cause in (Cause.COMPUTE, Cause.APPLY, Cause.UNKNOWN)
        if last is not None and is_thread and (last.cause, last.rank) == (link.cause, link.rank):
            first = last.name if last.name == link.name else f"{last.name.partition(' … ')[0]} … {link.name}"
            joined[-1] = last._replace(end_ns=link.end_ns, name=first.strip(" …"))
        else:
            joined.append(link)
    return joined


def add_up(links: Iterable[PathLink]) -> dict[Cause, int]:
    sums: dict[Cause, int] = {}
    for link in links:
        sums[link.cause] = sums.get(link.cause, 0) + link.length_ns
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
