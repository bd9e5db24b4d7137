"""The rendezvous server: a small TCP server through which the processes of a job find each other.

In: connections, each of which first proves that it knows the token and then joins one rendezvous.
Out: one reply per connection, which is then closed.
One thread runs one selector loop, and no connection can delay it: nothing in the loop blocks, strangers have a
deadline and their number is limited, and nothing is parsed before the handshake.  The messages after the handshake
have the format of `wire.streams`.
"""

from __future__ import annotations

import functools
import logging
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from undertow.decoding import Decoder
from undertow.engine.coordinator.rendezvous_table import MAX_PAYLOAD_BYTES, Join, RendezvousTable, Replies
from undertow.engine.wire.listeners import format_address, open_listener
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.strangers import Stranger, Strangers
from undertow.engine.wire.streams import Messages, pack
from undertow.errors import Garbled, Refused

MAX_REQUEST_BYTES = MAX_PAYLOAD_BYTES + 1024
MAX_STRANGERS = 128
# Maximum time in which a participant must send its request, and in which it must read its reply.
TRANSFER_TIMEOUT_S = 30.0

log = logging.getLogger("undertow.rendezvous")
_requests: Decoder[Join] = Decoder(Join, "a request")


@dataclass(eq=False)
class _Connection:
    """Connection of a process that knows the token."""

    sock: socket.socket
    deadline_s: float  # deadline of the request, then of the reply
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
        self._connections: dict[_Connection, None] = {}  # oldest first
        listener = open_listener(host, port)
        self.address = format_address(host, listener.getsockname()[1])
        self._loop = Loop("rendezvous")
        self._strangers = Strangers(
            self._loop, [listener], self._admit, refuse=self._refuse_stranger, most=MAX_STRANGERS
        )
        self._is_closing = False
        self._failure: Exception | None = None

    def start(self) -> None:
        """Begin to serve connections, including those that wait in the backlog."""
        self._strangers.start(self._token)
        self._loop.every_tick(self._expire)
        self._loop.on_failure(self._fail)
        self._loop.start()

    def close(self) -> None:
        """Stop listening, deliver pending replies and drop participants that still wait."""
        self._loop.post(self._stop_listening)
        self._loop.join()
        self._strangers.abandon()
        if self._failure:
            raise self._failure

    def _fail(self, failure: Exception) -> None:
        self._failure = failure  # kept for `close`
        for connection in self._connections:
            connection.sock.close()
        self._strangers.abandon()

    def _stop_listening(self) -> None:
        self._is_closing = True
        self._strangers.close()
        for connection in [connection for connection in self._connections if not connection.answered]:
            self._drop(connection)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_closing and not self._connections:
            self._loop.end()

    def _expire(self, now_s: float) -> None:
        self._deliver(self._table.expire(now_s))
        for connection in [each for each in self._connections if not each.joined and each.deadline_s <= now_s]:
            self._refuse(connection, "it was silent for too long")

    def _admit(self, stranger: Stranger) -> None:
        stranger.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = _Connection(stranger.sock, time.monotonic() + TRANSFER_TIMEOUT_S)
        self._connections[connection] = None
        self._loop.watch(connection.sock, selectors.EVENT_READ, functools.partial(self._serve, connection))

    def _serve(self, connection: _Connection, events: int) -> None:
        if connection not in self._connections:
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
        data = connection.sock.recv(min(connection.received.missing_bytes, 1 << 16))
        if not data:
            raise ConnectionResetError("the connection closed")
        if connection.joined or connection.answered:
            raise Refused("it sent more than one request")
        connection.received.feed(data)
        self._join_if_complete(connection)

    def _join_if_complete(self, connection: _Connection) -> None:
        body = connection.received.take()
        if body is None:
            return
        request = _requests.decode(body)
        connection.joined = True
        now_s = time.monotonic()
        replies = self._table.join(connection, request, now_s)
        deadline_s = self._table.next_deadline_s()
        if deadline_s is not None:
            self._loop.later(deadline_s - now_s, lambda: self._expire(time.monotonic()))
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
            self._watch(connection)

    def _send(self, connection: _Connection) -> None:
        if connection.outgoing:
            del connection.outgoing[: connection.sock.send(connection.outgoing)]
        if connection.answered and not connection.outgoing:
            self._drop(connection)
        else:
            self._watch(connection)

    def _watch(self, connection: _Connection) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        self._loop.rewatch(connection.sock, events, functools.partial(self._serve, connection))

    def _refuse_stranger(self, error: Exception, stranger: Stranger) -> None:
        if isinstance(error, Refused):
            self._count_refusal(str(error))

    def _refuse(self, connection: _Connection, reason: str) -> None:
        self._count_refusal(reason)
        self._drop(connection)

    def _count_refusal(self, reason: str) -> None:
        self.refused += 1
        if self.refused == 1:  # only once, because a port scanner must not fill the log
            log.warning("%s refused a connection: %s (the next ones are only counted)", self.address, reason)

    def _drop(self, connection: _Connection) -> None:
        self._table.leave(connection)
        self._connections.pop(connection)
        self._loop.unwatch(connection.sock)
        connection.sock.close()
        self._end_if_done()
