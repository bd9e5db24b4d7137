"""Stage 4, the outbox: the send queue of a process, which decides which frame leaves next.

In: a frame with its priority.  Out: the next frame to send, or None.
The lower number goes first; equal numbers leave in the order they came.
Nothing overtakes a frame that was taken, so the credit, not the tensor,
bounds how long an urgent slice can wait.
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import dataclass
from typing import Any

# With this many of the largest frames coming and going a link is never idle for want of credit.
MANY_FRAMES = 16


@dataclass(frozen=True, slots=True)
class QueuedFrame:
    """Frame for one peer.  The body must stay untouched until the peer has it."""

    peer: int
    header: Any
    body: Any  # a buffer
    size_bytes: int
    queued_s: float = 0.0  # when it was queued, while that is recorded


class Outbox:
    """Send queue in strict (priority, sequence) order, under a credit of bytes in flight.

    Credit is taken when a frame leaves and returned when its peer says that
    it *received* it, not when it was written: the kernel's buffers hide a slow
    peer.  It is not returned by the round's result: a round needs every worker,
    and waiting for it could block forever.
    """

    def __init__(self, credit_bytes: int, peers: int = 64) -> None:
        self.credit_bytes = credit_bytes
        self._largest_bytes = 0  # of all frames that may come
        self.in_flight_bytes = 0  # invariant: the sum of taken minus received, never negative
        self._unasked_bytes = 0  # of these, bytes that no receipt was asked for: the sum of taken minus covered
        self.received_bytes = 0  # by all peers, so far
        # Of each peer, in bytes so far.
        self._taken, self._received = count_for(peers), count_for(peers)
        self._covered = count_for(peers)  # by a receipt that came or was asked for
        # Frames that were put together are one entry, the last of them first; none is empty.
        self._heap: list[tuple[int, int, list[QueuedFrame]]] = []
        self._sequence = 0  # breaks ties, so that frames themselves are never compared
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, frames: list[QueuedFrame], priority: int = 0) -> None:
        """Queue frames that are equally urgent, in this order: for many peers that is quicker than one by one."""
        if frames:
            heapq.heappush(self._heap, (priority, self._sequence, frames[::-1]))
            self._sequence += 1
            self._count += len(frames)

    def take(self) -> QueuedFrame | None:
        """Return the most urgent frame, if the credit allows it; a smaller one never passes it by.

        A frame larger than the whole credit leaves when nothing is in flight.
        """
        if not self._heap:
            return None
        together = self._heap[0][2]
        frame = together[-1]
        if self.in_flight_bytes and self.in_flight_bytes + frame.size_bytes > self.credit_bytes:
            return None
        together.pop()
        if not together:
            heapq.heappop(self._heap)
        self._count -= 1
        self._taken[frame.peer] += frame.size_bytes
        self.in_flight_bytes += frame.size_bytes
        self._unasked_bytes += frame.size_bytes
        return frame

    def resize(self, credit_bytes: int, largest_bytes: int) -> None:
        """Change the credit and the largest frame to expect.  The caller must ask every peer for a receipt now."""
        self.credit_bytes, self._largest_bytes = credit_bytes, largest_bytes
        for peer, taken_bytes in enumerate(self._taken):
            self._cover(peer, taken_bytes)

    def wants_receipt(self, frame: QueuedFrame) -> bool:
        """Whether this frame, which was just taken, asks for a receipt at once.

        The receipt of another frame comes with whatever frame the peer sends next.  The bytes in flight without a
        request for a receipt, to all peers together, are at most

            min(max(credit / 2, credit - MANY_FRAMES * largest), credit - 2 * largest)

        so once all requested receipts have come, the next frame fits: credit never runs dry.
        """
        credit_bytes, largest_bytes = self.credit_bytes, self._largest_bytes
        may_wait_bytes = max(credit_bytes / 2, credit_bytes - MANY_FRAMES * largest_bytes)
        if self._unasked_bytes <= min(may_wait_bytes, credit_bytes - 2 * largest_bytes):
            return False
        self._cover(frame.peer, self._taken[frame.peer])
        return True

    def acknowledge(self, peer: int, received_bytes: int) -> bool:
        """Note how many bytes the peer has received in all; return False if that cannot be true."""
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
        """Note that a receipt for the first `taken_bytes` bytes to this peer has come or is sure to come."""
        covered = self._covered[peer]
        if taken_bytes > covered:
            self._unasked_bytes -= taken_bytes - covered
            self._covered[peer] = taken_bytes


def count_for(peers: int) -> array[int]:
    """Return counters for all peers in one block of memory: a simulation has a thousand workers with as many peers."""
    return array("q", bytes(8 * peers))
