"""Stage 4, the outbox: the send queue of a process, which decides which frame leaves next.

In: a frame with its priority.  Out: the next frame to send, or None.
The lowest priority number leaves first; frames of equal priority leave in the order in which they were queued.
Nothing overtakes a frame that has left, so the credit, not the size of a tensor,
bounds how long an urgent slice can wait.
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import dataclass
from typing import Any

# With credit for this many of the largest frames, a link is never idle for lack of credit.
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
    """Send queue in strict (priority, sequence) order, limited by a credit of bytes in flight.

    Credit is taken when a frame leaves and returned when its peer reports that it has *received* the frame, not when
    the frame is written: the kernel's buffers hide a slow peer.  The round's result does not return credit: a round
    needs every worker, and waiting for it could block forever.
    """

    def __init__(self, credit_bytes: int, peers: int = 64) -> None:
        self.credit_bytes = credit_bytes
        self._largest_bytes = 0  # size of the largest frame to expect
        self.in_flight_bytes = 0  # invariant: the sum of taken minus received, never negative
        self._uncovered_bytes = 0  # bytes in flight without a request for a receipt: the sum of taken minus covered
        self.received_bytes = 0  # total of all peers
        # Totals of each peer, in bytes.
        self._taken, self._received = count_for(peers), count_for(peers)
        self._covered = count_for(peers)  # covered by a receipt that has come or was requested
        # Frames that were put in one call are one entry, in reverse order; no list is empty.
        self._heap: list[tuple[int, int, list[QueuedFrame]]] = []
        self._sequence = 0  # breaks ties, so that frames are never compared
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, frames: list[QueuedFrame], priority: int = 0) -> None:
        """Queue frames of equal priority, in this order.  One call for many peers is faster than one call for each."""
        if frames:
            heapq.heappush(self._heap, (priority, self._sequence, frames[::-1]))
            self._sequence += 1
            self._count += len(frames)

    def take(self) -> QueuedFrame | None:
        """Return the most urgent frame, or None if the credit does not allow it; a smaller frame never overtakes it.

        A frame larger than the whole credit leaves when nothing is in flight.
        """
        if not self._heap:
            return None
        frames = self._heap[0][2]
        frame = frames[-1]
        if self.in_flight_bytes and self.in_flight_bytes + frame.size_bytes > self.credit_bytes:
            return None
        frames.pop()
        if not frames:
            heapq.heappop(self._heap)
        self._count -= 1
        self._taken[frame.peer] += frame.size_bytes
        self.in_flight_bytes += frame.size_bytes
        self._uncovered_bytes += frame.size_bytes
        return frame

    def resize(self, credit_bytes: int, largest_bytes: int) -> None:
        """Change the credit and the largest frame to expect.  The caller must then request a receipt of every peer."""
        self.credit_bytes, self._largest_bytes = credit_bytes, largest_bytes
        for peer, taken_bytes in enumerate(self._taken):
            self._cover(peer, taken_bytes)

    def wants_receipt(self, frame: QueuedFrame) -> bool:
        """Whether this frame, which was just taken, should request a receipt at once.

        Without a request, the receipt comes with the next frame that the peer happens to send.  The bytes in flight
        without a request, to all peers together, are at most

            min(max(credit / 2, credit - MANY_FRAMES * largest), credit - 2 * largest)

        so once all requested receipts have come, the next frame fits: credit never runs out for good.
        """
        credit_bytes, largest_bytes = self.credit_bytes, self._largest_bytes
        may_wait_bytes = max(credit_bytes / 2, credit_bytes - MANY_FRAMES * largest_bytes)
        if self._uncovered_bytes <= min(may_wait_bytes, credit_bytes - 2 * largest_bytes):
            return False
        self._cover(frame.peer, self._taken[frame.peer])
        return True

    def acknowledge(self, peer: int, received_bytes: int) -> bool:
        """Note how many bytes the peer has received in total; return False if that number is impossible."""
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
        """Note that a receipt for the first `taken_bytes` bytes to this peer has come or was requested."""
        covered = self._covered[peer]
        if taken_bytes > covered:
            self._uncovered_bytes -= taken_bytes - covered
            self._covered[peer] = taken_bytes


def count_for(peers: int) -> array[int]:
    """Return one counter per peer, compact in memory: a simulation has a thousand workers with as many peers each."""
    return array("q", bytes(8 * peers))
