"""As much data as a connection carries, for a while.

In: a connected socket.  Out: what arrived, in how many seconds.
The receiver decides when it has had enough: what is still in the sender's buffers is thrown away, so that
a slow link costs no more time than a fast one.  Nothing waits longer than `STALL_S` for a byte.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from contextlib import suppress

import msgspec

from undertow.core.decoding import Count, Seconds

CHUNK_BYTES = 1 << 18
# TCP sends a lost packet again after 0.2, 0.6 and 1.4 s: who hears nothing for longer will not hear the rest either.
STALL_S = 2.0
# Slow start is over by then, on links within a building.
WARM_UP_SHARE = 0.2
LONGEST_S = 60.0


class Received(msgspec.Struct, frozen=True):
    size_bytes: Count  # after the warm-up
    time_s: Seconds
    is_stalled: bool = False  # nothing came any more, though more was sent

    @property
    def rate_bytes_per_s(self) -> float:
        return self.size_bytes / self.time_s if self.time_s > 0 else 0.0


def receive(sock: socket.socket, duration_s: float) -> Received:
    """Read for so long; the clock starts with the first byte."""
    room = bytearray(CHUNK_BYTES)
    sock.settimeout(STALL_S)
    try:
        if not sock.recv_into(room):
            return Received(0, 0.0, is_stalled=True)
        start_s = time.perf_counter()
        _read_until(sock, room, start_s + WARM_UP_SHARE * duration_s)
        warm_s = time.perf_counter()
        size_bytes, is_stalled = _read_until(sock, room, start_s + duration_s)
    except TimeoutError:
        return Received(0, 0.0, is_stalled=True)
    return Received(size_bytes, time.perf_counter() - warm_s, is_stalled)


def _read_until(sock: socket.socket, room: bytearray, end_s: float) -> tuple[int, bool]:
    """Bytes until that time, or until nothing comes any more."""
    size_bytes = 0
    while time.perf_counter() < end_s:
        try:
            count = sock.recv_into(room)
        except TimeoutError:
            return size_bytes, True
        if not count:
            return size_bytes, True
        size_bytes += count
    return size_bytes, False


def pump(sock: socket.socket, duration_s: float) -> None:
    """Send until the other end says something or leaves; at the latest when it must have given up."""
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


def drop_the_rest(sock: socket.socket) -> None:
    """Have `close` throw away what is still to be sent: the next measurement must find an empty link."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
