"""Stage 4, sending: frames leave in order of priority, as far as the credit allows, and receipts return credit.

In: frames with a priority, headers of received frames.  Out: packed frames for the transport.
A process has one sender for its contributions and its answers, so one order of priority holds for both.
The outbox decides which frame leaves next; the sender sends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from undertow.engine.core import frames
from undertow.engine.core.frames import RECEIPT, Body, Header, Kind, Unexpected
from undertow.engine.core.outbox import Outbox, QueuedFrame, count_for
from undertow.engine.core.rate import Rate
from undertow.engine.core.rounds import Array, KeySpec, view_bytes
from undertow.engine.core.shape import Shape
from undertow.engine.wire.transport import Transport
from undertow.tracing import events
from undertow.tracing.recorder import Recorder, process_recorder

_RECEIVED = Kind.RECEIVED  # looked up once, because it is compared with every frame


class FrameSender:
    """Sender of one process: its send queue and the credit that peers return.  Owned by the engine thread."""

    def __init__(
        self,
        shape: Shape,
        transport: Transport,
        *,
        clock: Callable[[], float] = time.monotonic,
        pack: Callable[[Header, int, int, Any], Any] = frames.pack,
        recorder: Recorder = process_recorder,
    ) -> None:
        self.rate = Rate()
        self._shape = shape
        self._transport = transport
        self._clock = clock
        self._pack = pack
        self._recorder = recorder
        self._largest_bytes = 0  # size of the largest slice ever expected
        credit_bytes = shape.credit_bytes or shape.credit_slices * shape.sizes.start
        self.outbox = Outbox(credit_bytes, shape.processes)
        self._receipt = Header(_RECEIVED, rank=shape.rank, job=shape.job)
        # By peer.
        self._received_bytes = count_for(shape.processes)
        self._acknowledged_bytes = count_for(shape.processes)
        self._arriving_since_s: dict[int, float] = {}  # start of the slice now arriving, while events are recorded

    @property
    def is_empty(self) -> bool:
        return not len(self.outbox)

    # Frames to send

    def make_frame(self, peer: int, header: Header, body: Body | None) -> QueuedFrame:
        queued_s = self._recorder.clock() if self._recorder.is_on else 0.0
        return QueuedFrame(peer, header, body, header.length, queued_s)

    def queue(self, frames: list[QueuedFrame], priority: int) -> None:
        """Queue frames of one key, in this order."""
        self.outbox.put(frames, priority)

    def pump(self) -> None:
        """Send frames as far as the credit allows."""
        while (frame := self.outbox.take()) is not None:
            flags = RECEIPT if self.outbox.wants_receipt(frame) else 0
            if self._recorder.is_on:
                self._record_sent(frame)
            self._send(frame.peer, frame.header, frame.body, flags)

    def _send(self, peer: int, header: Header, body: Body | None, flags: int = 0) -> None:
        received = self._acknowledged_bytes[peer] = self._received_bytes[peer]
        checked_body = body if self._transport.checks_bodies(peer) else None
        self._transport.send(peer, self._pack(header, received, flags, checked_body), body and body.data)

    # Frames that arrive

    def note_arriving(self, peer: int, since_s: float) -> None:
        """Note, for traces, when the current slice from this peer began to arrive."""
        self._arriving_since_s[peer] = since_s

    def note_arrived(self, peer: int, header: Header) -> None:
        """Count a complete frame and take the credit that it returns; raise `Unexpected` if that is impossible."""
        self._received_bytes[peer] += header.length
        if not self.outbox.acknowledge(peer, header.received):
            raise Unexpected(f"rank {peer} reports {header.received} bytes received, which is impossible")
        if self._recorder.is_on and header.kind is not _RECEIVED:
            self._record_received(peer, header)

    def go_on(self, peer: int, header: Header) -> None:
        """Send what can leave after this frame was handled, and a receipt for it if requested."""
        self.pump()
        self.rate.note(self._clock(), self.outbox.received_bytes, is_waiting=len(self.outbox) > 0)
        # Credit returns with the next frame to that peer, or in a frame of its own if the peer is short of credit.
        if header.flags & RECEIPT and self._received_bytes[peer] > self._acknowledged_bytes[peer]:
            self._send(peer, self._receipt, None)

    # Credit

    def resize(self, slice_bytes: int) -> None:
        """Adapt the credit to slices of this size, which fit the links."""
        if not self._shape.credit_bytes:
            # Slices of tables that keep their slice size may be larger.
            self.set_credit(max(self._shape.credit_slices * slice_bytes, 2 * self._largest_bytes))
            self.pump()

    def expect_sizes(self, specs: Iterable[KeySpec]) -> None:
        """Prepare for slices of these keys."""
        self.expect_size(max((spec.size_bytes for spec in specs), default=0))

    def expect_size(self, size_bytes: int) -> None:
        """Prepare for slices of up to this size."""
        if size_bytes > self._largest_bytes:
            self._largest_bytes = size_bytes
            self.set_credit(self.outbox.credit_bytes)

    def set_credit(self, credit_bytes: int) -> None:
        self.outbox.resize(credit_bytes, self._largest_bytes)
        if self.outbox.in_flight_bytes:
            for peer in self._shape.peers:
                # Frames in flight may not have requested the receipts that the new credit needs.
                self._send(peer, self._receipt, None, RECEIPT)

    # Traces

    def _record_received(self, peer: int, header: Header) -> None:
        now_s = self._recorder.clock()
        since_s = self._arriving_since_s.pop(peer, now_s)
        self._recorder.record(
            events.Received(since_s, now_s, peer, header.kind, header.key, header.step, header.length)
        )

    def _record_sent(self, frame: QueuedFrame) -> None:
        header, now_s = frame.header, self._recorder.clock()
        queued_s = frame.queued_s or now_s  # 0 if it was queued before the recording began
        self._recorder.record(
            events.Sent(queued_s, now_s, frame.peer, header.kind, header.key, header.step, header.length)
        )


def make_body(array: Array | None) -> Body | None:
    """Return an array's bytes as the body of frames; None if there is no array."""
    return None if array is None else Body(view_bytes(array))
