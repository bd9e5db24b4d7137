"""The rendezvous server: a small TCP server through which the processes of a job find each other.

In: connections, each of which first proves that it knows the token and then joins one rendezvous.
Out: one reply per connection, which is then closed.
One thread runs one selector loop, and no connection can delay it: nothing in the loop blocks, strangers have a
deadline and their number is limited, and nothing is parsed before the handshake.  The messages after the handshake
have the format of `wire.streams`.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from undertow.decoding import Decoder
from undertow.engine.coordinator.rendezvous_table import MAX_PAYLOAD_BYTES, Join, RendezvousTable, Replies
from undertow.engine.wire.auth import Handshake, Role
from undertow.engine.wire.listeners import format_address, open_listener
from undertow.engine.wire.strangers import STRANGER_TIMEOUT_S, find_surplus
from undertow.engine.wire.streams import Messages, pack
from undertow.errors import Garbled, Refused

MAX_REQUEST_BYTES = MAX_PAYLOAD_BYTES + 1024
MAX_STRANGERS = 128
# Maximum time in which a participant must send its request, and in which it must read its reply.
TRANSFER_TIMEOUT_S = 30.0
LONGEST_SLEEP_S = 3600.0  # the system accepts no timeout of more than 24 days

log = logging.getLogger("undertow.rendezvous")
_requests: Decoder[Join] = Decoder(Join, "a request")


@dataclass(eq=False)
class _Connection:
    """Connection of a process, which is a stranger until the handshake proves that it knows the token."""

    sock: socket.socket
    handshake: Handshake
    deadline_s: float  # deadline of the handshake, then of the request, then of the reply
    received: Messages = field(default_factory=lambda: Messages(MAX_REQUEST_BYTES, "a request"))
    outgoing: bytearray = field(default_factory=bytearray)
    joined: bool = False  # waits in a rendezvous, whose deadline applies instead
    answered: bool = False  # closed as soon as `outgoing` is empty


class RendezvousServer:
    """Server for any number of rendezvous.  Call `start` and `close` in the same thread."""

    def __init__(
        self, host: str, port: int, token: bytes, *, on_complete: Callable[[str], None] = lambda name: None
    ) -> None:
        self.refused = 0  # number of refused connections; written only by the loop
        self._token = token
        self._table = RendezvousTable()
        self._on_complete = on_complete  # called by the loop, with the name of the rendezvous
        self._connections: dict[socket.socket, _Connection] = {}  # oldest first
        self._listener = open_listener(host, port)
        self.address = format_address(host, self._listener.getsockname()[1])
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="undertow-rendezvous", daemon=True)

    def start(self) -> None:
        """Begin to serve connections, including those that wait in the backlog."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, deliver pending replies and drop participants that still wait."""
        if self._thread.is_alive():
            self._wake_in.send(b"x")
            self._thread.join()
        self._selector.close()
        for sock in (self._listener, self._wake_in, self._wake_out, *self._connections):
            sock.close()
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        try:
            while self._connections or not self._closing:
                self._turn()
        except Exception as error:  # kept for `close`: a thread never dies unnoticed
            self._failure = error
            self._listener.close()

    def _turn(self) -> None:
        for key, events in self._selector.select(self._select_timeout_s()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_out:
                self._stop_listening()
            else:
                self._serve(key.data, events)
        now_s = time.monotonic()
        self._deliver(self._table.expire(now_s))
        silent = [each for each in self._connections.values() if not each.joined and each.deadline_s <= now_s]
        for connection in silent:
            self._refuse(connection, "it was silent for too long")

    def _select_timeout_s(self) -> float | None:
        deadlines = [connection.deadline_s for connection in self._connections.values() if not connection.joined]
        expires_s = self._table.next_deadline_s()
        if expires_s is not None:
            deadlines.append(expires_s)
        return min(LONGEST_SLEEP_S, max(0.0, min(deadlines) - time.monotonic())) if deadlines else None

    def _accept(self) -> None:
        strangers = [connection for connection in self._connections.values() if not connection.handshake.done]
        oldest = find_surplus(strangers, MAX_STRANGERS)
        if oldest is not None:
            self._refuse(oldest, "too many strangers at once")
        try:
            sock, _ = self._listener.accept()
        except OSError:
            time.sleep(0.01)  # perhaps no file descriptors are left: retry, but not in a busy loop
            return
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = _Connection(sock, Handshake(Role.LISTENER, self._token), time.monotonic() + STRANGER_TIMEOUT_S)
        self._connections[sock] = connection
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _stop_listening(self) -> None:
        self._closing = True
        for sock in (self._listener, self._wake_out):
            self._selector.unregister(sock)
        self._listener.close()
        for connection in [connection for connection in self._connections.values() if not connection.answered]:
            self._drop(connection)

    def _serve(self, connection: _Connection, events: int) -> None:
        if connection.sock not in self._connections:
            return  # dropped earlier in this pass of the loop
        try:
            if events & selectors.EVENT_READ:
                self._receive(connection)
            self._send(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
        except (Refused, Garbled) as error:
            self._refuse(connection, str(error))

    def _receive(self, connection: _Connection) -> None:
        wants = connection.handshake.wants or connection.received.missing_bytes
        data = connection.sock.recv(min(wants, 1 << 16))
        if not data:
            raise ConnectionResetError("the connection closed")
        if connection.handshake.wants:
            connection.outgoing += connection.handshake.feed(data)
            if connection.handshake.done:
                connection.deadline_s = time.monotonic() + TRANSFER_TIMEOUT_S
        elif connection.joined or connection.answered:
            raise Refused("it sent more than one request")
        else:
            connection.received.feed(data)
            self._join_if_complete(connection)

    def _join_if_complete(self, connection: _Connection) -> None:
        body = connection.received.take()
        if body is None:
            return
        request = _requests.decode(body)
        connection.joined = True
        replies = self._table.join(connection, request, time.monotonic())
        if replies and not replies[0][1].failure:
            self._on_complete(request.name)
        self._deliver(replies)

    def _deliver(self, replies: Replies) -> None:
        packed: dict[int, bytes] = {}  # all participants of a rendezvous get the same reply, which is encoded once
        for connection, reply in replies:
            assert isinstance(connection, _Connection)
            if id(reply) not in packed:
                packed[id(reply)] = pack(reply)
            connection.outgoing += packed[id(reply)]
            connection.joined, connection.answered = False, True
            connection.deadline_s = time.monotonic() + TRANSFER_TIMEOUT_S
            self._serve(connection, selectors.EVENT_WRITE)

    def _send(self, connection: _Connection) -> None:
        if connection.sock not in self._connections:
            return  # answered and closed while its request was handled
        if connection.outgoing:
            del connection.outgoing[: connection.sock.send(connection.outgoing)]
        if connection.answered and not connection.outgoing:
            return self._drop(connection)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        self._selector.modify(connection.sock, events, connection)

    def _refuse(self, connection: _Connection, reason: str) -> None:
        self.refused += 1
        if self.refused == 1:  # only once, because a port scanner must not fill the log
            log.warning("%s refused a connection: %s (the next ones are only counted)", self.address, reason)
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._table.leave(connection)
        self._connections.pop(connection.sock, None)
        self._selector.unregister(connection.sock)
        connection.sock.close()
