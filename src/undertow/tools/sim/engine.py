"""Engine of a worker on a virtual clock: the real exchange over virtual links.

In: contributions, frames of other engines.  Out: frames.
The engine is one thread: each frame that it sends or receives takes some time, and the next one waits.
"""

from __future__ import annotations

import functools
import heapq
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from undertow.engine.client.exchange import Exchange
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import HEADER_BYTES, Header
from undertow.engine.core.rounds import Array, Held, Round
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Slice, TensorSpec
from undertow.engine.server.gathering import RankBytes
from undertow.tools.sim.topology import Fabric
from undertow.tools.virtual.world import Clock
from undertow.tracing.recorder import Recorder


class Bulk:
    """Stand-in for an array, with only the attributes that the engine reads, so that nothing is allocated."""

    __slots__ = ("nbytes",)
    dtype = np.dtype(np.float32)

    def __init__(self, size_bytes: int) -> None:
        self.nbytes = size_bytes

    def view(self, dtype: Any) -> Bulk:
        return self


@functools.cache
def make_bulk(size_bytes: int) -> Any:
    """Return a stand-in of this size, typed as the array it stands for."""
    return Bulk(size_bytes)


class Nowhere:
    """Memory pool that allocates nothing."""

    def take(self, size_bytes: int) -> Array:
        array: Array = make_bulk(size_bytes)
        return array

    def give(self, array: Array) -> None:
        pass

    def clear(self) -> None:
        pass


class CountedRound(Round):
    """Round whose contributions are counted, not added."""

    def _fold(self, waiting: list[Held | None], *, divisor: int = 1, into: Array | None = None) -> None:
        for item in waiting:
            if item is not None:
                self._sum = item.array
                return


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of an engine's thread and of messages: a frame's is measured in the lab, the others are estimates."""

    message_s: float = 0.00006  # for each frame sent or received
    byte_s: float = 1 / 4e9  # for each byte received: read, added, answered
    arbiter_message_s: float = 0.00015  # from a worker to its host's arbiter or back, until the receiver runs


class Engine:
    """Engine of one worker; also the `Transport` of its exchange."""

    def __init__(
        self, clock: Clock, fabric: Fabric, shape: Shape, costs: Costs, recorder: Recorder | None = None
    ) -> None:
        self.rank = shape.rank
        self.peers: Sequence[Engine] = ()  # all engines, by rank
        self._clock = clock
        self._fabric = fabric
        self._costs = costs
        self._exchange = Exchange(
            shape,
            self,
            clock=lambda: clock.now_s,
            memory=Nowhere(),
            make_round=CountedRound,
            pack=keep_header,
            recorder=recorder or Recorder(),
        )
        self._busy_until_s = 0.0
        self._coming: list[tuple[float, int, tuple[int, Header, Any]]] = []  # a heap: arrival, count, frame
        self._count = 0  # breaks ties
        self._last_s = array("d", bytes(8 * shape.processes))  # when the last frame of each peer arrives
        self._current: tuple[int, Header, Any] | None = None
        self._begins_s = math.inf  # when the next frame is handled, while the engine is idle

    # Rounds

    def learn(self, slices: Sequence[Slice], *, label: str = "", tensors: Sequence[TensorSpec] = ()) -> None:
        self._exchange.learn(slices)

    def resize(self, slice_bytes: int) -> None:
        self._exchange.sender.resize(slice_bytes)

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        self._exchange.worker.contribute(contributions)

    def release(self, gathered: Sequence[RankBytes]) -> None:
        self._exchange.worker.release(gathered)

    # Transport

    bytes_sent = 0  # the links count

    def send(self, peer: int, header: Any, body: Any = None) -> None:
        self._spend(self._costs.message_s)
        size_bytes = HEADER_BYTES + header.length
        self._fabric.send(self.rank, peer, size_bytes, self._arrival_at(peer), (self.rank, header, body))

    def _arrival_at(self, peer: int) -> Callable[[float, tuple[int, Header, Any]], None]:
        """Return what to call when the frame that leaves now arrives."""
        return self.peers[peer].expect

    def is_connected(self, peer: int) -> bool:
        return True

    @property
    def is_draining(self) -> bool:
        return False

    def checks_bodies(self, peer: int) -> bool:
        return False

    def close(self) -> None: ...

    def abandon(self) -> None: ...

    # Inside: frames are handled one after another, in the order of their arrival

    def expect(self, arrival_s: float, frame: tuple[int, Header, Any]) -> None:
        """Note that a frame arrives at this time.  Frames of one sender stay in order, whatever their paths."""
        sender = frame[0]
        if arrival_s <= self._last_s[sender]:
            arrival_s = math.nextafter(self._last_s[sender], math.inf)
        self._last_s[sender] = arrival_s
        self._count += 1
        heapq.heappush(self._coming, (arrival_s, self._count, frame))
        if self._current is None:
            self._begin_at(arrival_s)

    def _begin_at(self, time_s: float) -> None:
        time_s = max(time_s, self._busy_until_s)
        if time_s < self._begins_s:
            self._begins_s = time_s
            self._clock.at(time_s, self._begin_if_idle)

    def _begin_if_idle(self) -> None:
        if self._clock.now_s == self._begins_s and self._current is None:  # otherwise an earlier call has begun
            self._begins_s = math.inf
            self._begin()

    def _begin(self) -> None:
        """Begin to handle the first frame, which has arrived."""
        _, _, self._current = heapq.heappop(self._coming)
        self._spend(self._costs.message_s + self._current[1].length * self._costs.byte_s)
        self._clock.at(self._busy_until_s, self._end)

    def _end(self) -> None:
        assert self._current is not None
        frame, self._current = self._current, None
        self._handle(frame)
        if not self._coming:
            return
        if self._coming[0][0] <= self._clock.now_s:
            self._begin()
        else:
            self._begin_at(self._coming[0][0])

    def _handle(self, frame: tuple[int, Header, Any]) -> None:
        self._exchange.handle(*frame)

    def _spend(self, seconds: float) -> None:
        now_s = self._clock.now_s
        self._busy_until_s = (self._busy_until_s if self._busy_until_s > now_s else now_s) + seconds


def keep_header(header: Header, received: int, flags: int, checked_body: Any) -> Header:
    """Return the header itself instead of packing it, as `frames.pack` does."""
    kind, key, step, rank, present, length, dtype, own_flags, job, *_ = header
    return Header(kind, key, step, rank, present, length, dtype, own_flags | flags, job, received)
