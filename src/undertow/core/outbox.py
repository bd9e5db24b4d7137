"""Stage 4, the outbox: decides which ready slice goes on the wire next.

In: a parcel with its priority.  Out: the next parcel to send, or None.
The lower number goes first; equal numbers leave in the order they came.
Nothing overtakes a parcel that was taken, so the credit, not the tensor,
bounds how long an urgent slice can wait.
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import dataclass
from typing import Any

# With so many of the largest parcels coming and going a link is never idle for want of credit.
MANY = 16


@dataclass(frozen=True, slots=True)
class Parcel:
    """One frame for one peer.  The body must stay untouched until the peer has it."""

    peer: int
    header: Any
    body: Any  # a buffer
    size_bytes: int
    queued_s: float = 0.0  # since when it waits, if anybody takes note of that


class Outbox:
    """Strict (priority, sequence) order under a credit of bytes in flight.

    Credit is taken when a parcel leaves and returned when its peer says that
    it *received* it, not when it was written: the kernel's buffers hide a slow
    peer.  It is not returned by the round's result: a round needs every worker,
    and waiting for it could block for ever.
    """

    def __init__(self, credit_bytes: int, peers: int = 64) -> None:
        self.credit_bytes = credit_bytes
        self._largest_bytes = 0  # of all parcels that may come
        self.in_flight_bytes = 0  # invariant: the sum of taken minus received, never negative
        self._unasked_bytes = 0  # of these, what no receipt was asked for: the sum of taken minus covered
        self.received_bytes = 0  # by all peers, so far
        # Of each peer, in bytes so far.
        self._taken, self._received = count_for(peers), count_for(peers)
        self._covered = count_for(peers)  # by a receipt that came or was asked for
        # Parcels that came together are one entry, the last of them first; none is empty.
        self._heap: list[tuple[int, int, list[Parcel]]] = []
        self._sequence = 0  # breaks ties, so that parcels themselves are never compared
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, parcel: Parcel, priority: int = 0) -> None:
        self.put_all([parcel], priority)

    def put_all(self, parcels: list[Parcel], priority: int = 0) -> None:
        """Several that are equally urgent, in this order: to many peers that is quicker than one by one."""
        if parcels:
            heapq.heappush(self._heap, (priority, self._sequence, parcels[::-1]))
            self._sequence += 1
            self._count += len(parcels)

    def take(self) -> Parcel | None:
        """The most urgent parcel, if the credit allows it; a smaller one never passes it by.

        A parcel larger than the whole credit leaves when nothing is in flight.
        """
        if not self._heap:
            return None
        together = self._heap[0][2]
        parcel = together[-1]
        if self.in_flight_bytes and self.in_flight_bytes + parcel.size_bytes > self.credit_bytes:
            return None
        together.pop()
        if not together:
            heapq.heappop(self._heap)
        self._count -= 1
        self._taken[parcel.peer] += parcel.size_bytes
        self.in_flight_bytes += parcel.size_bytes
        self._unasked_bytes += parcel.size_bytes
        return parcel

    def resize(self, credit_bytes: int, largest_bytes: int) -> None:
        """Another credit, and parcels of at most so many bytes.  A receipt must be asked of every peer now."""
        self.credit_bytes, self._largest_bytes = credit_bytes, largest_bytes
        for peer, taken_bytes in enumerate(self._taken):
            self._cover(peer, taken_bytes)

    def wants_receipt(self, parcel: Parcel) -> bool:
        """Whether this parcel, which was just taken, asks for a receipt at once.

        Others wait until some frame comes back that carries it along.  Of what is in flight, all peers
        together, no more than half of the credit may wait so, or all but many of the largest parcels, if that
        is more, and two of them less than all of it: so once all that was asked for has come, the next parcel
        fits, and credit can never run dry.
        """
        credit_bytes, largest_bytes = self.credit_bytes, self._largest_bytes
        may_wait_bytes = max(credit_bytes / 2, credit_bytes - MANY * largest_bytes)
        if self._unasked_bytes <= min(may_wait_bytes, credit_bytes - 2 * largest_bytes):
            return False
        self._cover(parcel.peer, self._taken[parcel.peer])
        return True

    def acknowledge(self, peer: int, received_bytes: int) -> bool:
        """The peer has received that many bytes in all.  False if that cannot be true."""
        before = self._received[peer]
        if not before <= received_bytes <= self._taken[peer]:
            return False
        if received_bytes > before:
            self.in_flight_bytes -= received_bytes - before
            self.received_bytes += received_bytes - before
            self._received[peer] = received_bytes
            self._cover(peer, received_bytes)
        return True

    def _cover(self, peer: int, taken_bytes: int) -> None:
        """A receipt for the first so many bytes to this peer came or is sure to come."""
        covered = self._covered[peer]
        if taken_bytes > covered:
            self._unasked_bytes -= taken_bytes - covered
            self._covered[peer] = taken_bytes


def count_for(peers: int) -> array[int]:
    """A count for each peer: close together, for there may be a thousand of them, of a thousand workers."""
    return array("q", bytes(8 * peers))
