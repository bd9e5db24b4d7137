"""Transport in memory: many workers in one thread, for tests and the fault driver.

In: frames.  Out: the same frames, when a driver calls `deliver`.  The driver chooses the order of the links freely.
It keeps the promises of every transport (see transport).  It does not copy a body before delivery, so a worker that
overwrites it too early is noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from undertow.engine.core import frames
from undertow.engine.core.frames import Garbled, Header
from undertow.engine.wire.transport import Receiver, explain

_Frame = tuple[bytes, Any]


class MemoryNetwork:
    """Links between all pairs of workers, in both directions, with their undelivered frames."""

    def __init__(self, size: int) -> None:
        self.transports = [MemoryTransport(self, rank) for rank in range(size)]
        # (sender, receiver) -> frames in order; a string instead of a frame is the end of the link, with its reason.
        self._links: dict[tuple[int, int], deque[_Frame | str]] = {
            (sender, receiver): deque() for sender in range(size) for receiver in range(size) if sender != receiver
        }

    def connect(self, receivers: Sequence[Receiver]) -> None:
        """Connect every pair of workers and notify both."""
        for transport in self.transports:
            transport.start(receivers[transport.rank], peers=set(range(len(receivers))) - {transport.rank})
        for sender, receiver in self._links:
            receivers[receiver].connected(sender)

    def links_with_frames(self) -> list[tuple[int, int]]:
        """Return (sender, receiver) of every link with an undelivered frame, always in the same order."""
        return [link for link, undelivered in self._links.items() if undelivered]

    def deliver(self, sender: int, receiver: int) -> Header | None:
        """Deliver the oldest frame of a link and return its header; None for the end of the link."""
        item = self._links[sender, receiver].popleft()
        if isinstance(item, str):
            self.transports[receiver].lose(sender, item)
            return None
        return self.transports[receiver].take(sender, *item)

    def cut(self, one: int, other: int) -> None:
        """Break a link: undelivered frames are lost, and both ends will be notified."""
        for sender, receiver in ((one, other), (other, one)):
            self._links[sender, receiver].clear()
            self.put(sender, receiver, "its connection broke (cut)")

    def put(self, sender: int, receiver: int, item: _Frame | str) -> None:
        if self.transports[receiver].is_connected(sender):
            self._links[sender, receiver].append(item)

    def forget(self, sender: int, receiver: int) -> None:
        self._links[sender, receiver].clear()


class MemoryTransport:
    """Transport of one worker: its ends of all links."""

    def __init__(self, network: MemoryNetwork, rank: int) -> None:
        self.rank = rank
        self.bytes_sent = 0
        self._network = network
        self._peers: set[int] = set()
        self._receiver: Receiver | None = None

    def start(self, receiver: Receiver, *, peers: set[int]) -> None:
        self._receiver = receiver
        self._peers = peers

    def send(self, peer: int, header: bytes, body: Any = None) -> None:
        if peer in self._peers:
            self.bytes_sent += len(header) + (0 if body is None else memoryview(body).nbytes)
            self._network.put(self.rank, peer, (header, body))

    def is_connected(self, peer: int) -> bool:
        return peer in self._peers

    @property
    def is_draining(self) -> bool:
        return False  # sent frames arrive even after `close`

    def checks_bodies(self, peer: int) -> bool:
        return True

    def close(self) -> None:
        for peer in sorted(self._peers):
            self._hang_up(peer)

    def abandon(self) -> None:
        """Do nothing: the links belong to the parent."""

    # Called by the network

    def take(self, sender: int, packed: bytes, body: Any) -> Header | None:
        assert self._receiver is not None
        try:
            header = frames.unpack(packed)
            sink = self._receiver.sink(sender, header) if header.length else None
            if sink is not None:
                memoryview(sink).cast("B")[:] = memoryview(body).cast("B")
                frames.check_body(header, sink)
        except Garbled as error:
            self._receiver.lost(sender, explain(error))
            self._hang_up(sender)
            return None
        if sink is not None or not header.length:
            self._receiver.arrived(sender, header, sink)
        return header

    def lose(self, peer: int, reason: str) -> None:
        assert self._receiver is not None
        self._hang_up(peer)
        self._receiver.lost(peer, reason)

    def _hang_up(self, peer: int) -> None:
        self._peers.discard(peer)
        self._network.forget(peer, self.rank)
        self._network.put(self.rank, peer, "its connection closed (the process ended)")
