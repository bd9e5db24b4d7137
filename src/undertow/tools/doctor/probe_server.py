"""Probe server: answers the doctors of other hosts that measure the link to this one.

In: connections whose dialler knows the token.  Out: an answer to one request each.
Listens only on the interface in use, on a port that the system chooses, like workers, so that whatever blocks workers
blocks probes too.  Strangers, which have not shown the token, are limited in number and time (see wire.strangers).
Each other connection has a thread and a deadline.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from undertow.decoding import Decoder
from undertow.engine.wire.listeners import format_address
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.strangers import Stranger, Strangers
from undertow.engine.wire.streams import pack, read_exactly
from undertow.errors import Refused
from undertow.tools.doctor.probe_protocol import (
    STALL_S,
    STAMP,
    Echo,
    Give,
    ProbeRequest,
    Take,
    pump,
    read_probe_message,
    receive,
)

MOST_CLIENTS = 64
CLIENT_S = 5.0  # between two messages
_REQUESTS: Decoder[ProbeRequest] = Decoder(ProbeRequest)


class ProbeServer:
    """Server that accepts connections when created, and answers them between `serve` and `close`."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family, backlog=MOST_CLIENTS)
        listener.setblocking(False)
        self.address = format_address(address, listener.getsockname()[1])
        self._slots = threading.Semaphore(MOST_CLIENTS)
        self._loop = Loop("probe")
        self._strangers = Strangers(self._loop, [listener], self._admit)

    def serve(self, token: bytes) -> None:
        self._strangers.start(token)
        self._loop.start()

    def close(self) -> None:
        self._loop.stop()
        self._strangers.abandon()

    def _admit(self, stranger: Stranger) -> None:
        threading.Thread(target=self._serve, args=[stranger.sock], daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        # Errors are ignored: the doctor at the other end reports them, also if there are too many clients.
        with sock, suppress(OSError, Refused):
            if not self._slots.acquire(blocking=False):
                return
            try:
                sock.settimeout(CLIENT_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _answer(sock, read_probe_message(sock, _REQUESTS))
            finally:
                self._slots.release()


def _answer(sock: socket.socket, request: ProbeRequest) -> None:
    match request:
        case Echo(count):
            for _ in range(count):
                read_exactly(sock, STAMP.size)
                sock.sendall(STAMP.pack(time.time()))
        case Take(duration_s):
            sock.sendall(pack(receive(sock, duration_s)))
            _wait_for_close(sock)
        case Give(duration_s):
            pump(sock, duration_s)


def _wait_for_close(sock: socket.socket) -> None:
    """Read until the client closes: closing first would reset the connection, and our answer might be lost."""
    buffer, deadline_s = bytearray(1 << 16), time.monotonic() + STALL_S
    while time.monotonic() < deadline_s and sock.recv_into(buffer):
        pass
