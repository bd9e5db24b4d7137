"""Connection to one peer: sends and receives frames without copying large bodies.

In: frames to send, bytes from the socket.  Out: bytes to the socket, frames to the receiver.
It knows nothing of rounds or priorities: frames leave in the order in which they are given.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from undertow.engine.core import frames
from undertow.engine.core.frames import HEADER_BYTES, Garbled, Header, Kind
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.transport import Receiver, explain
from undertow.tracing import events
from undertow.tracing.recorder import Recorder

# Small frames are received into this buffer, several at a time; the rest of a large body is
# received straight into its sink.
STAGING_BYTES = 16 << 10
# The thread wakes up once for this much of a large body, not for every packet.
LOW_WATER_BYTES = 256 << 10
# Maximum number of consecutive reads from one peer, so that no peer starves the others.
READS_IN_A_ROW = 8
MAX_BUFFERS = 16
_WITHOUT_SLICE = (Kind.RECEIVED, Kind.CONTROL, Kind.HEARTBEAT)
# A peer whose bytes were damaged closes its end when it learns of it.  If it does not, the link is closed after this.
DRAIN_TIMEOUT_S = 30.0
CLOSED = "its connection closed (the process ended)"


class Link:
    """Connection to one peer.  Owned by the engine thread.

    `on_lost(reason)` is called once, when the connection breaks.  After damaged bytes it is called while the link can
    still send: frames that are sent from within the call reach the peer.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: int,
        *,
        loop: Loop,
        receiver: Receiver,
        on_lost: Callable[[str], None],
        recorder: Recorder | None = None,
    ) -> None:
        self.peer = peer
        self.bytes_sent = 0
        self.is_open = True
        self.is_draining = False  # accepts no more frames, but still sends those accepted before
        self._sock = sock
        self._loop = loop
        self._receiver = receiver
        self._on_lost = on_lost
        self._recorder = recorder
        self._accepted_bytes = 0  # total of all frames accepted for sending
        self._recorded: deque[tuple[int, bytes]] = deque()  # frames to send: `_accepted_bytes` at the end, header
        self._buffers: deque[memoryview] = deque()
        self._wants_write = False
        self._staging = memoryview(bytearray(STAGING_BYTES))
        self._staged = 0  # bytes of the staging buffer that hold received data
        self._header: Header | None = None  # header of the frame whose body is being received
        self._body: Any | None = None
        self._rest: memoryview | None = None  # memory for the rest of the body
        self._drop_bytes = 0  # bytes of an unwanted body that are still to come
        self._low_water = 1
        sock.setblocking(False)
        loop.watch(sock, selectors.EVENT_READ, self._ready)

    # Out

    def send(self, header: bytes, body: Any) -> None:
        self._buffers.append(memoryview(header))
        self._accepted_bytes += len(header)
        # An empty buffer would stay in the queue forever, because buffers are removed by the bytes sent.
        if body is not None and (view := memoryview(body).cast("B")):
            self._buffers.append(view)
            self._accepted_bytes += len(view)
        if self._recorder is not None and self._recorder.is_on:
            self._recorded.append((self._accepted_bytes, header))
        if not self._wants_write:
            self._write()

    def _write(self) -> None:
        while self._buffers:
            try:
                sent = self._sock.sendmsg(list(islice(self._buffers, MAX_BUFFERS)))
            except BlockingIOError:
                break
            except OSError as error:
                self.close(_describe(error))
                return
            self.bytes_sent += sent
            self._remove_sent(sent)
            if self._recorded:
                self._record_written()
        self._want_write(bool(self._buffers))
        self._hang_up_when_written()

    def _remove_sent(self, sent: int) -> None:
        while sent:
            first = self._buffers[0]
            if sent < len(first):
                self._buffers[0] = first[sent:]
                return
            sent -= len(first)
            self._buffers.popleft()

    def _record_written(self) -> None:
        while self._recorded and self._recorded[0][0] <= self.bytes_sent:
            kind, key, step = frames.peek(self._recorded.popleft()[1])
            if self._recorder is not None and kind not in _WITHOUT_SLICE:
                self._recorder.record(events.Written(self._recorder.clock(), self.peer, kind, key, step))

    def _want_write(self, wants: bool) -> None:
        if wants != self._wants_write and (self.is_open or self.is_draining):
            self._wants_write = wants
            mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants else 0)
            self._loop.rewatch(self._sock, mask, self._ready)

    # In

    def _ready(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._write()
        if mask & selectors.EVENT_READ:
            self._read()

    def _read(self) -> None:
        try:
            for _ in range(READS_IN_A_ROW):
                more = self._read_some() if self.is_open else self.is_draining and self._drop_some()
                if not more:
                    return
        except BlockingIOError:
            pass
        except Garbled as error:
            self._drain(explain(error))
        except OSError as error:
            self.close(_describe(error))

    def _read_some(self) -> bool:
        """Read with one system call; return False if nothing is left to read, for now or for good."""
        target = self._rest if self._rest is not None else self._staging[self._staged :]
        got = self._sock.recv_into(target)
        if not got:
            self.close(CLOSED)
            return False
        if self._rest is not None:
            self._rest = self._rest[got:]
            self._finish_body()
        else:
            self._staged += got
            self._parse()
        return got == len(target)

    def _parse(self) -> None:
        """Handle all frames in the staging buffer; keep the beginning of an incomplete frame."""
        start = 0
        while self.is_open:
            available = self._staged - start
            if self._drop_bytes:
                dropped = min(available, self._drop_bytes)
                self._drop_bytes -= dropped
                start += dropped
                if self._drop_bytes:
                    break
            elif available < HEADER_BYTES:
                break
            else:
                start = self._begin(start)
                if self._rest is not None:
                    break
        self._staging[: self._staged - start] = self._staging[start : self._staged]
        self._staged -= start

    def _begin(self, start: int) -> int:
        """Read the header at `start` and the part of its body that has arrived; return their end."""
        header = frames.unpack(self._staging[start : start + HEADER_BYTES])
        start += HEADER_BYTES
        if header.length == 0:
            self._receiver.arrived(self.peer, header, None)
            return start
        sink = self._receiver.sink(self.peer, header)
        if sink is None:
            self._drop_bytes = header.length
            return start
        self._header, self._body = header, sink
        view = memoryview(sink).cast("B")
        staged = min(len(view), self._staged - start)
        view[:staged] = self._staging[start : start + staged]
        self._rest = view[staged:]
        self._finish_body()
        return start + staged

    def _finish_body(self) -> None:
        assert self._rest is not None
        assert self._header is not None
        missing = len(self._rest)
        self._set_low_water(min(missing, LOW_WATER_BYTES) or 1)
        if not missing:
            header, body = self._header, self._body
            self._header = self._body = self._rest = None
            frames.check_body(header, body)
            self._receiver.arrived(self.peer, header, body)

    def _set_low_water(self, low_water: int) -> None:
        if low_water != self._low_water:
            self._low_water = low_water
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)

    # Closing

    def _drain(self, reason: str) -> None:
        """Report the link as lost while frames still reach the peer, then hang up.

        Bytes that the peer still sends are read and dropped: closing with unread bytes would reset the connection,
        which could cut off the last frames.
        """
        self._header = self._body = self._rest = None
        self._set_low_water(1)
        on_lost, self._on_lost = self._on_lost, lambda reason: None
        on_lost(reason)
        if self.is_open:
            self.is_open, self.is_draining = False, True
            self._loop.later(DRAIN_TIMEOUT_S, self.close)
            self._hang_up_when_written()

    def _hang_up_when_written(self) -> None:
        """End the stream after the last frame.  The peer then closes its end, which also closes this one."""
        if self.is_draining and not self._buffers:
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError:  # the peer has already hung up
                self.close()

    def _drop_some(self) -> bool:
        """Read and drop bytes; return whether there may be more."""
        got = self._sock.recv_into(self._staging)
        if not got:
            self.close()
        return got == len(self._staging)

    def close(self, reason: str | None = None) -> None:
        """Close the link; with a reason, report it as lost."""
        if not (self.is_open or self.is_draining):
            return
        self.is_open = self.is_draining = False
        self._loop.unwatch(self._sock)
        self._sock.close()
        self._buffers.clear()
        if reason is not None:
            self._on_lost(reason)

    def abandon(self) -> None:
        """Close this process's copy of the socket and do nothing else."""
        self._sock.close()


def _describe(error: OSError) -> str:
    """Return the reason for a loss.  A process that ends with unread bytes resets the connection."""
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return CLOSED
    return f"its connection broke ({error.strerror or error})"
