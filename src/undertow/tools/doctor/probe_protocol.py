"""Protocol between the doctors of two hosts on one connection, after the handshake.

In: a socket, and structs or bulk data to send.  Out: the structs read, and figures of the bulk data that arrived.
The dialler sends one request per connection, as a message of `wire.streams`.  Sizes and numbers have limits; nothing is
unpickled.
The receiver of bulk data decides when to stop; what is then in the sender's buffers is discarded, so that a slow link
takes no longer to measure than a fast one.  No wait for a byte is longer than `STALL_S`.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from contextlib import suppress
from typing import Annotated, TypeVar

import msgspec

from undertow.decoding import Count, Decoder, Seconds
from undertow.engine.wire.streams import read_message
from undertow.errors import Garbled, Refused

LONGEST_MESSAGE = 256
MOST_ECHOES = 1000
STAMP = struct.Struct("<d")
CHUNK_BYTES = 1 << 18
# TCP sends a lost packet again after 0.2, 0.6 and 1.4 s: if nothing arrives for longer, nothing more will.
STALL_S = 2.0
# On links within a building, TCP's slow start is over after this share of the time.
WARM_UP_SHARE = 0.2
LONGEST_S = 60.0

Duration = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)]
T = TypeVar("T")


class Echo(msgspec.Struct, frozen=True, tag=True):
    """Request to answer each of `count` small messages with the time of the server's clock."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_ECHOES)]


class Take(msgspec.Struct, frozen=True, tag=True):
    """Request to receive bulk data for `duration_s`, and to answer with a `Received`."""

    duration_s: Duration


class Give(msgspec.Struct, frozen=True, tag=True):
    """Request to send bulk data for `duration_s`."""

    duration_s: Duration


ProbeRequest = Echo | Take | Give


def read_probe_message(sock: socket.socket, decoder: Decoder[T]) -> T:
    """Read one message; raise `Refused` if it is not of the decoder's type."""
    body = read_message(sock, LONGEST_MESSAGE, "a probe message")
    try:
        return decoder.decode(body)
    except Garbled as error:
        raise Refused(f"a probe message is invalid ({error}): install the same undertow on all hosts") from None


class Received(msgspec.Struct, frozen=True):
    """Data that arrived after the warm-up."""

    size_bytes: Count
    time_s: Seconds
    is_stalled: bool = False  # data stopped arriving, though more was sent

    @property
    def rate_bytes_per_s(self) -> float:
        return self.size_bytes / self.time_s if self.time_s > 0 else 0.0


def receive(sock: socket.socket, duration_s: float) -> Received:
    """Read for `duration_s`, starting with the first byte."""
    buffer = bytearray(CHUNK_BYTES)
    sock.settimeout(STALL_S)
    try:
        if not sock.recv_into(buffer):
            return Received(0, 0.0, is_stalled=True)
        start_s = time.perf_counter()
        _read_until(sock, buffer, start_s + WARM_UP_SHARE * duration_s)
        warm_s = time.perf_counter()
        size_bytes, is_stalled = _read_until(sock, buffer, warm_s + (1 - WARM_UP_SHARE) * duration_s)
    except TimeoutError:
        return Received(0, 0.0, is_stalled=True)
    return Received(size_bytes, time.perf_counter() - warm_s, is_stalled)


def _read_until(sock: socket.socket, buffer: bytearray, end_s: float) -> tuple[int, bool]:
    """Return the number of bytes that arrived until `end_s`, and whether they stopped arriving before.

    Reads at least once, however late it is: a busy host may run this thread only when the time is over.
    """
    size_bytes, is_over = 0, False
    while not is_over:
        try:
            count = sock.recv_into(buffer)
        except TimeoutError:
            return size_bytes, True
        if not count:
            return size_bytes, True
        size_bytes += count
        is_over = time.perf_counter() >= end_s
    return size_bytes, False


def pump(sock: socket.socket, duration_s: float) -> None:
    """Send until the other end answers or closes, or must have given up."""
    deadline_s = time.monotonic() + duration_s + 2 * STALL_S
    data = memoryview(bytes(CHUNK_BYTES))
    sock.setblocking(False)
    while (left_s := deadline_s - time.monotonic()) > 0:
        readable, writable, _ = select.select([sock], [sock], [], left_s)
        if readable:
            break
        if writable:
            with suppress(BlockingIOError):
                sock.send(data)
    sock.settimeout(STALL_S)
