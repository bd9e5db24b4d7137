"""A worker's engine on a virtual clock: the real exchange over virtual links.

In: contributions, messages of other engines.  Out: messages.
The engine is one thread: each frame that it sends or receives costs it some time, and the next one waits.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from undertow.core.flow import Contribution
from undertow.core.frames import HEADER_BYTES, Header
from undertow.plan.slicing import Slice
from undertow.runtime.exchange import Exchange
from undertow.runtime.shape import Shape
from undertow.sim.bulk import CountedRound, Nowhere
from undertow.sim.clock import Clock
from undertow.sim.topology import Fabric


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds of one engine thread, as measured on the machines of the lab."""

    message_s: float = 0.00006  # for each frame, either way
    byte_s: float = 1 / 4e9  # of each byte received: read, added, answered


class Engine:
    """One worker's; also the `Transport` of its exchange."""

    def __init__(self, clock: Clock, fabric: Fabric, shape: Shape, costs: Costs) -> None:
        self.rank = shape.rank
        self.peers: Sequence[Engine] = ()  # all engines, by rank
        self._clock = clock
        self._fabric = fabric
        self._costs = costs
        self._exchange = Exchange(
            shape, self, clock=lambda: clock.now_s, memory=Nowhere(), make_round=CountedRound, pack=keep_header
        )
        self._busy_until_s = 0.0
        self._last_s = array("d", bytes(8 * shape.size))  # of each peer: when its last frame is handled
        self._expected: deque[tuple[float, tuple[int, Header, Any]]] = deque()  # frames, and when each is handled

    def learn(self, slices: Sequence[Slice], credited_bytes: int) -> None:
        self._exchange.learn(slices)
        self._exchange.resize(credited_bytes)

    def contribute(self, contributions: Sequence[Contribution]) -> None:
        self._exchange.contribute(contributions)

    # Transport

    bytes_sent = 0  # the links count

    def send(self, peer: int, header: Any, body: Any = None) -> None:
        self._spend(self._costs.message_s)
        size_bytes = HEADER_BYTES + header.length
        self._fabric.send(self.rank, peer, size_bytes, self.peers[peer].expect, (self.rank, header, body))

    def is_connected(self, peer: int) -> bool:
        return True

    def close(self) -> None: ...

    def abandon(self) -> None: ...

    # Inside

    def expect(self, arrival_s: float, frame: tuple[int, Header, Any]) -> None:
        """A frame will be there at this time, and be handled when its turn comes."""
        sender, header, _ = frame
        if not header.length:  # it need not wait for those that are still coming in, but for its sender's
            self._spend(self._costs.message_s)
            self._last_s[sender] = max(arrival_s, self._last_s[sender]) + self._costs.message_s
            self._clock.at(self._last_s[sender], self._exchange.handle, *frame)
            return
        cost_s = self._costs.message_s + header.length * self._costs.byte_s
        start_s = self._busy_until_s if self._busy_until_s > arrival_s else arrival_s
        self._busy_until_s = self._last_s[sender] = start_s + cost_s
        # Only the first of them is with the clock, which is quicker the less it has to sort.
        self._expected.append((self._busy_until_s, frame))
        if len(self._expected) == 1:
            self._clock.at(self._busy_until_s, self._handle)

    def _handle(self) -> None:
        _, frame = self._expected.popleft()
        if self._expected:
            self._clock.at(self._expected[0][0], self._handle)
        self._exchange.handle(*frame)

    def _spend(self, seconds: float) -> None:
        now_s = self._clock.now_s
        self._busy_until_s = (self._busy_until_s if self._busy_until_s > now_s else now_s) + seconds


def keep_header(header: Header, received: int, flags: int) -> Header:
    """In place of `frames.pack`: what leaves is the header itself."""
    kind, key, step, rank, present, length, dtype, own_flags, job, _ = header
    return Header(kind, key, step, rank, present, length, dtype, own_flags | flags, job, received)
