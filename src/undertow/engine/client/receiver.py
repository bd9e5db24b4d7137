"""Entry point of a group in the engine thread, for frames, ticks and contributions of training threads.

In: frames and links from the transport, ticks from the loop, contributions from training threads.
Out: calls of the exchange and of the group's control.  Invalid frames are dropped and counted.
Nothing here raises: an error fails the group, and the next call of a training thread raises it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from undertow.engine.client.control import GroupControl
from undertow.engine.client.engine_queue import guarded
from undertow.engine.client.exchange import Exchange
from undertow.engine.client.waiting import Waiters
from undertow.engine.coordinator import messages
from undertow.engine.core import frames
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import SLICE_KINDS, Header, Kind, Unexpected
from undertow.engine.core.shape import Shape
from undertow.engine.wire.loop import Loop
from undertow.errors import Garbled

log = logging.getLogger("undertow")

DEVICE_POLL_S = 0.0002


class GroupReceiver:
    """Receiver of frames, ticks and contributions for one group.  Owned by the engine thread."""

    def __init__(self, shape: Shape, loop: Loop, exchange: Exchange, control: GroupControl, waiters: Waiters) -> None:
        self.dropped: Counter[str] = Counter()  # invalid frames, by kind
        self.never_connected = sorted(shape.peers)
        self.all_connected = threading.Event()  # set once every peer has connected, even if some have left since
        self.waiters = waiters
        self._shape = shape
        self._loop = loop
        self._exchange = exchange
        self._control = control
        if not self.never_connected:
            self.all_connected.set()

    @guarded
    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None) -> None:
        if self.waiters.error is not None:
            return
        if is_ready is not None and not is_ready():
            self._loop.later(DEVICE_POLL_S, lambda: self.contribute(contributions, is_ready))
            return
        if is_ready is not None:
            self._exchange.worker.open_work.end()
        self._exchange.worker.contribute(contributions)
        self._control.check_departed()

    @guarded
    def tick(self, now: float) -> None:
        self._control.tick(now)

    @guarded
    def connected(self, peer: int) -> None:
        self._control.on_connected(peer)
        self.never_connected.remove(peer)
        if not self.never_connected:
            self.all_connected.set()

    @guarded
    def lost(self, peer: int, reason: str) -> None:
        self._control.lose(peer, reason)

    def sink(self, peer: int, header: Header) -> Any | None:
        try:
            self._check_sender(peer, header)
            if header.kind in SLICE_KINDS:
                return self._exchange.sink(peer, header)
            if header.kind is Kind.CONTROL and header.length <= frames.MAX_CONTROL_BYTES:
                return bytearray(header.length)
            raise Unexpected(f"a {header.kind.name} of {header.length} bytes")
        except (Unexpected, MemoryError) as error:
            self._drop(peer, header, str(error) or f"there is no memory for its {header.length} bytes")
            return None

    @guarded
    def arrived(self, peer: int, header: Header, body: Any | None) -> None:
        self._control.note_alive(peer)
        if header.kind is Kind.HEARTBEAT:
            return
        try:
            self._check_sender(peer, header)
            if header.kind is Kind.CONTROL:
                self._control.handle_message(peer, messages.decode(body or b""))
            else:
                self._exchange.handle(peer, header, body)
                self._control.check_departed()
        except (Unexpected, Garbled) as error:
            self._drop(peer, header, str(error))

    def _check_sender(self, peer: int, header: Header) -> None:
        if header.job != self._shape.job or header.rank != peer:
            raise Unexpected(f"a frame of job {header.job} and rank {header.rank} on the link to rank {peer}")

    def _drop(self, peer: int, header: Header, reason: str) -> None:
        self.dropped[header.kind.name] += 1
        if self.dropped.total() == 1:
            sender = self._shape.name(peer)
            log.warning("dropped a frame from rank %d: %s (the next ones are only counted)", sender, reason)
