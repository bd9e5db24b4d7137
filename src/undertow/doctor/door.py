"""The door: where the other hosts' doctors come to measure the way to this one.

In: connections that know the token.  Out: answers to one request each.
Listens on the interface in use only, on a port that the system gives, as workers do: what stops them stops
this too.  Strangers are refused before anything of theirs is parsed, and the oldest makes room for the next one
(see wire.strangers); each guest has a thread and a deadline.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from undertow.coordinator.meeting_point import format_address
from undertow.core.decoding import Decoder
from undertow.doctor.bulk import STALL_S, pump, receive
from undertow.doctor.letters import STAMP, Echo, Give, Request, Take, read_exactly, read_letter, send_letter
from undertow.errors import Refused
from undertow.wire.auth import Role, shake_hands
from undertow.wire.strangers import find_surplus

MOST_GUESTS = 64
GUEST_S = 5.0  # for the handshake, and between two messages
POLL_S = 0.2
_REQUESTS: Decoder[Request] = Decoder(Request)


class Door:
    """Open from the start; answers from `serve` on, until `close`."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=MOST_GUESTS)
        self._listener.settimeout(POLL_S)
        self.address = format_address(address, self._listener.getsockname()[1])
        self._places = threading.Semaphore(MOST_GUESTS)  # for those who have shown the token
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def serve(self, token: bytes) -> None:
        self._thread = threading.Thread(target=self._accept, args=[token], name="undertow-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()  # it looks every `POLL_S`; a socket that it waits for would stay open behind a close
        self._listener.close()

    def _accept(self, token: bytes) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                time.sleep(POLL_S)  # out of file descriptors perhaps: not in a busy loop
                continue
            self._take_in(sock)
            threading.Thread(target=self._welcome, args=[sock, token], daemon=True).start()

    def _take_in(self, sock: socket.socket) -> None:
        with self._lock:
            oldest = find_surplus(self._strangers)
            if oldest is not None:
                del self._strangers[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and closes it
            self._strangers[sock] = None

    def _welcome(self, sock: socket.socket, token: bytes) -> None:
        # A guest that leaves or talks nonsense is its own doctor's business: that one says so.
        with sock, suppress(OSError, Refused):
            try:
                sock.settimeout(GUEST_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                shake_hands(sock, Role.LISTENER, token)
            finally:
                with self._lock:
                    self._strangers.pop(sock, None)
            self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        if not self._places.acquire(blocking=False):
            return  # a crowd: who belongs here tries again, or says so
        try:
            _answer(sock, read_letter(sock, _REQUESTS))
        finally:
            self._places.release()


def _answer(sock: socket.socket, request: Request) -> None:
    match request:
        case Echo(count):
            for _ in range(count):
                read_exactly(sock, STAMP.size)
                sock.sendall(STAMP.pack(time.time()))
        case Take(duration_s):
            send_letter(sock, receive(sock, duration_s))
            _wait_for_goodbye(sock)
        case Give(duration_s):
            pump(sock, duration_s)


def _wait_for_goodbye(sock: socket.socket) -> None:
    """To close now would reset the connection, and our letter might be lost on the way."""
    room, deadline_s = bytearray(1 << 16), time.monotonic() + STALL_S
    while time.monotonic() < deadline_s and sock.recv_into(room):
        pass
