"""Stage 4, the outbox: decides which ready slice goes on the wire next.

In: a parcel with its priority.  Out: the next parcel to send, or None.
The lower number goes first; equal numbers leave in the order they came.
Nothing overtakes a parcel that was taken, so the credit, not the tensor,
bounds how long an urgent slice can wait.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
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


@dataclass(slots=True)
class _Account:
    """What one peer was sent, in bytes so far."""

    taken: int = 0
    received: int = 0
    covered: int = 0  # by a receipt that came or was asked for


class Outbox:
    """Strict (priority, sequence) order under a credit of bytes in flight.

    Credit is taken when a parcel leaves and returned when its peer says that
    it *received* it, not when it was written: the kernel's buffers hide a slow
    peer.  It is not returned by the round's result: a round needs every worker,
    and waiting for it could block for ever.
    """

    def __init__(self, credit_bytes: int) -> None:
        self.credit_bytes = credit_bytes
        self._largest_bytes = 0  # of all parcels that may come
        self.in_flight_bytes = 0  # invariant: the sum of taken minus received, never negative
        self._unasked_bytes = 0  # of these, what no receipt was asked for: the sum of taken minus covered
        self.received_bytes = 0  # by all peers, so far
        self._accounts: defaultdict[int, _Account] = defaultdict(_Account)
        self._heap: list[tuple[int, int, Parcel]] = []
        self._sequence = 0  # breaks ties, so that parcels themselves are never compared

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, parcel: Parcel, priority: int = 0) -> None:
        heapq.heappush(self._heap, (priority, self._sequence, parcel))
        self._sequence += 1

    def take(self) -> Parcel | None:
        """The most urgent parcel, if the credit allows it; a smaller one never passes it by.

        A parcel larger than the whole credit leaves when nothing is in flight.
        """
        if not self._heap:
            return None
        parcel = self._heap[0][2]
        if self.in_flight_bytes and self.in_flight_bytes + parcel.size_bytes > self.credit_bytes:
            return None
        heapq.heappop(self._heap)
        self._accounts[parcel.peer].taken += parcel.size_bytes
        self.in_flight_bytes += parcel.size_bytes
        self._unasked_bytes += parcel.size_bytes
        return parcel

    def resize(self, credit_bytes: int, largest_bytes: int) -> None:
        """Another credit, and parcels of at most so many bytes.  A receipt must be asked of every peer now."""
        self.credit_bytes, self._largest_bytes = credit_bytes, largest_bytes
        for account in self._accounts.values():
            self._cover(account, account.taken)

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
        account = self._accounts[parcel.peer]
        self._cover(account, account.taken)
        return True

    def acknowledge(self, peer: int, received_bytes: int) -> bool:
        """The peer has received that many bytes in all.  False if that cannot be true."""
        account = self._accounts[peer]
        if not account.received <= received_bytes <= account.taken:
            return False
        if received_bytes > account.received:
            self.in_flight_bytes -= received_bytes - account.received
            self.received_bytes += received_bytes - account.received
            account.received = received_bytes
            self._cover(account, received_bytes)
        return True

    def _cover(self, account: _Account, taken_bytes: int) -> None:
        """A receipt for the first so many bytes to this peer came or is sure to come."""
        if taken_bytes > account.covered:
            self._unasked_bytes -= taken_bytes - account.covered
            account.covered = taken_bytes
