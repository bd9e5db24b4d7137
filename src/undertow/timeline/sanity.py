"""Which events of a trace can be true.

In: an event that was decoded.  Out: whether its figures are possible; one that is not would spoil those of all others.
"""

from __future__ import annotations

from undertow.bounds import MOST_WORKERS
from undertow.timeline.events import Args, Event

LATEST_US = 1e16  # three hundred years, on any clock
LONGEST_US = 1e13  # a hundred days
LARGEST = 1 << 53  # of a count
SLOWEST_BYTES_PER_S, FASTEST_BYTES_PER_S = 1e-3, 1e15


def is_possible(event: Event) -> bool:
    if not (-LATEST_US <= event.ts <= LATEST_US and 0 <= event.dur <= LONGEST_US):
        return False
    return event.args is None or _are_possible(event.args)


def _are_possible(args: Args) -> bool:
    return (
        -1 <= args.step < LARGEST
        and -1 <= args.key < LARGEST
        and -1 <= args.round < LARGEST
        and 0 <= args.size_bytes < LARGEST
        and -1 <= args.to < MOST_WORKERS
        and -1 <= args.source_rank < MOST_WORKERS
        and -LATEST_US <= args.sent <= LATEST_US
        and -LATEST_US <= args.queued <= LATEST_US
        and args.world_size <= MOST_WORKERS
        and 0 <= args.round_trip_s <= LONGEST_US / 1e6
        and (not args.bytes_per_s or SLOWEST_BYTES_PER_S <= args.bytes_per_s <= FASTEST_BYTES_PER_S)
    )
