"""Joins what the sender of a slice saw with what its receiver saw.

In: a trace.  Out: the same wires, the sender's knowing when the slice arrived, the receiver's when it was queued and
sent.  Within one link slices arrive as they were sent, so the n-th of a kind, key and round there is the n-th here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection

from undertow.timeline.model import RankTrace, Trace, Wire


def match_wires(trace: Trace) -> None:
    arriving = {rank.rank: _sort_by_sender(rank) for rank in trace.ranks.values()}
    for sender in trace.ranks.values():
        coming: dict[tuple[int, str, int, int], deque[Wire]] = defaultdict(deque)
        for out in sender.outs:
            coming[out.peer, out.kind, out.key, out.round].append(out)
        for rank, by_sender in arriving.items():
            for wire in by_sender[sender.rank]:
                queue = coming.get((rank, wire.kind, wire.key, wire.round))
                if queue:
                    _join(queue.popleft(), wire)


def _sort_by_sender(rank: RankTrace) -> dict[int, list[Wire]]:
    by_sender: dict[int, list[Wire]] = defaultdict(list)
    for wire in rank.ins:
        by_sender[wire.peer].append(wire)
    return by_sender


def _join(out: Wire, arrived: Wire) -> None:
    out.arrived_ns = arrived.end_ns
    arrived.sent_ns, arrived.queued_ns = out.sent_ns, out.queued_ns


def count_unmatched(trace: Trace, steps: Collection[int]) -> tuple[int, int]:
    """Of the slices sent in these steps to a rank that is here: how many never arrived in its file, and of how many."""
    sent = [out for rank in trace.ranks.values() for out in rank.outs if out.step in steps and out.peer in trace.ranks]
    return sum(out.arrived_ns < 0 for out in sent), len(sent)
