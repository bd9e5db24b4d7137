"""Strangers: connections that have not proved knowledge of the token yet.

In: listening sockets, the token.  Out: connections that know the token, and refusals with their reasons.
A peer needs only milliseconds for the proof.  The oldest stranger is therefore no peer and is dropped for the next
one, so silent strangers cannot keep peers out.  Nothing is parsed before the handshake, and nothing blocks.
"""

from __future__ import annotations

import functools
import selectors
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from undertow.engine.wire.auth import Handshake, Role
from undertow.engine.wire.loop import Loop
from undertow.errors import Garbled, Refused

MAX_STRANGERS = 64
STRANGER_TIMEOUT_S = 5.0
ACCEPT_PAUSE_S = 0.1

T = TypeVar("T")


def find_surplus(strangers: Collection[T], most: int = MAX_STRANGERS) -> T | None:
    """Return the stranger to drop before the next one is accepted; None if there is room."""
    return next(iter(strangers)) if len(strangers) >= most else None


@dataclass(eq=False)
class Stranger:
    """Accepted connection in the middle of the handshake or of its introduction."""

    sock: socket.socket
    address: Any
    handshake: Handshake
    since_s: float = field(default_factory=time.monotonic)
    introduction: bytes = b""  # what the peer says of itself after the handshake, before it is admitted

    def read(self, find_missing: Callable[[bytes], int]) -> bool:
        """Read the available bytes, and none after the introduction; return whether that is complete."""
        data = self.sock.recv(self.handshake.wants or find_missing(self.introduction))
        if not data:
            raise ConnectionResetError("it closed the connection during the handshake")
        if self.handshake.done:
            self.introduction += data
        else:
            # This cannot block: it sends at most 55 bytes, and the socket's buffer is empty.
            self.sock.sendall(self.handshake.feed(data))
        return self.handshake.done and not find_missing(self.introduction)


class Strangers:
    """Strangers of one server, which owns its listeners.  To be used in the thread of the loop.

    `admit` gets each stranger that knows the token and has introduced itself.  It owns the socket from then on, unless
    it raises `OSError`, `Refused` or `Garbled`.
    `find_missing` returns how many bytes an introduction lacks; without it there is none.
    `refuse` gets the reason for dropping a stranger: `OSError` if its connection failed, else `Refused` or `Garbled`.
    """

    def __init__(
        self,
        loop: Loop,
        listeners: Sequence[socket.socket],
        admit: Callable[[Stranger], None],
        *,
        refuse: Callable[[Exception, Stranger], None] = lambda error, stranger: None,
        find_missing: Callable[[bytes], int] = lambda introduction: 0,
        most: int = MAX_STRANGERS,
    ) -> None:
        self._loop = loop
        self._listeners = listeners
        self._admit = admit
        self._refuse = refuse
        self._find_missing = find_missing
        self._most = most
        self._token = b""
        self._all: dict[Stranger, None] = {}  # oldest first
        self._watched: set[socket.socket] = set()  # listeners, except those whose last `accept` failed
        self._is_closed = False
        loop.every_tick(self.expire)

    def __len__(self) -> int:
        return len(self._all)

    def start(self, token: bytes) -> None:
        """Begin to accept strangers, including those that wait in the backlog."""
        self._token = token
        for listener in self._listeners:
            self._watch(listener)

    def close(self) -> None:
        """Drop all strangers and accept no more, while the loop goes on."""
        self._is_closed = True
        self._loop.no_tick(self.expire)
        for listener in self._watched:
            self._loop.unwatch(listener)
        for stranger in tuple(self._all):
            self._forget(stranger)
            stranger.sock.close()
        self.abandon()

    def abandon(self) -> None:
        """Close the sockets without the loop, which has ended or belongs to the parent of this forked child."""
        for sock in (*self._listeners, *(stranger.sock for stranger in self._all)):
            sock.close()

    def expire(self, now_s: float) -> None:
        """Drop the strangers that have had enough time."""
        for stranger in tuple(self._all):
            if now_s - stranger.since_s > STRANGER_TIMEOUT_S:
                self._drop(stranger, Refused(f"it did not complete the handshake within {STRANGER_TIMEOUT_S:g} s"))

    def _watch(self, listener: socket.socket) -> None:
        if not self._is_closed:
            self._watched.add(listener)
            self._loop.watch(listener, selectors.EVENT_READ, functools.partial(self._accept, listener))

    def _accept(self, listener: socket.socket, events: int) -> None:
        try:
            sock, address = listener.accept()
        except OSError:
            # The peer has given up, or no descriptors are left, in which case an immediate retry would fail too.
            self._watched.discard(listener)
            self._loop.unwatch(listener)
            self._loop.later(ACCEPT_PAUSE_S, lambda: self._watch(listener))
            return
        oldest = find_surplus(self._all, self._most)
        if oldest is not None:
            self._drop(oldest, Refused("too many connections without a token"))
        sock.setblocking(False)
        stranger = Stranger(sock, address, Handshake(Role.LISTENER, self._token))
        self._all[stranger] = None
        self._loop.watch(sock, selectors.EVENT_READ, lambda events: self._handle(stranger))

    def _handle(self, stranger: Stranger) -> None:
        if stranger not in self._all:
            return  # dropped for another stranger since the socket was found ready
        try:
            is_known = stranger.read(self._find_missing)
        except BlockingIOError:
            return
        except (OSError, Refused) as error:
            self._drop(stranger, error)
            return
        if is_known:
            self._forget(stranger)
            try:
                self._admit(stranger)
            except (OSError, Refused, Garbled) as error:
                self._turn_away(stranger, error)

    def _forget(self, stranger: Stranger) -> None:
        self._all.pop(stranger)
        self._loop.unwatch(stranger.sock)

    def _drop(self, stranger: Stranger, error: Exception) -> None:
        self._forget(stranger)
        self._turn_away(stranger, error)

    def _turn_away(self, stranger: Stranger, error: Exception) -> None:
        self._refuse(error, stranger)
        stranger.sock.close()
