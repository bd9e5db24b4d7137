"""Probe server: answers the doctors of other hosts that measure the link to this one.

In: connections whose dialler knows the token.  Out: an answer to one request each.
Listens only on the interface in use, on a port that the system chooses, like workers, so that whatever blocks workers
blocks probes too.  A stranger, which has not shown the token, is refused before any of its data is parsed; if there are
too many, the oldest is closed (see wire.strangers).  Each connection has a thread and a deadline.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from undertow.decoding import Decoder
from undertow.engine.wire.auth import Role, shake_hands
from undertow.engine.wire.listeners import format_address
from undertow.engine.wire.strangers import find_surplus
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
CLIENT_S = 5.0  # for the handshake, and between two messages
POLL_S = 0.2
_REQUESTS: Decoder[ProbeRequest] = Decoder(ProbeRequest)


class ProbeServer:
    """Server that accepts connections when created, and answers them between `serve` and `close`."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=MOST_CLIENTS)
        self._listener.settimeout(POLL_S)
        self.address = format_address(address, self._listener.getsockname()[1])
        self._slots = threading.Semaphore(MOST_CLIENTS)  # for clients that have shown the token
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def serve(self, token: bytes) -> None:
        self._thread = threading.Thread(target=self._accept, args=[token], name="undertow-probe", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()  # it ends within `POLL_S`; the kernel keeps a socket open while a thread accepts on it
        self._listener.close()

    def _accept(self, token: bytes) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                time.sleep(POLL_S)  # perhaps out of file descriptors: avoid a busy loop
                continue
            self._add_stranger(sock)
            threading.Thread(target=self._handle, args=[sock, token], daemon=True).start()

    def _add_stranger(self, sock: socket.socket) -> None:
        with self._lock:
            oldest = find_surplus(self._strangers)
            if oldest is not None:
                del self._strangers[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # unblocks its thread, which closes it
            self._strangers[sock] = None

    def _handle(self, sock: socket.socket, token: bytes) -> None:
        # Errors are ignored: the doctor at the other end reports them.
        with sock, suppress(OSError, Refused):
            try:
                sock.settimeout(CLIENT_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                shake_hands(sock, Role.LISTENER, token)
            finally:
                with self._lock:
                    self._strangers.pop(sock, None)
            self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        if not self._slots.acquire(blocking=False):
            return  # too many clients: the doctor at the other end reports that
        try:
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
