"""Connections between the launchers of a job, from the rendezvous of the hosts until the workers have met.

In: the address of the first launcher, the job's token, the supervisor's observations, the start marks of the workers.
Out: when to start the workers; the first cause to end them, once.
One event loop owns all sockets and the `HostWatch`, which decides; other threads only post calls to it.
Every connection starts with the handshake of `engine/wire/auth.py`; nothing is parsed before it, and nothing blocks.

A message after the handshake is a length of 4 bytes (little endian), then msgpack; a host's first message is its
number.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from undertow.decoding import Decoder, Rank
from undertow.engine.coordinator.rendezvous import parse_address
from undertow.engine.wire.auth import introduce
from undertow.engine.wire.listeners import format_address, open_listener
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.strangers import Stranger, Strangers
from undertow.engine.wire.streams import LENGTH_BYTES, Messages, pack
from undertow.errors import Garbled, PeerLost, Refused
from undertow.launch.host_watch import (
    BEAT_EVERY_S,
    HUB,
    Goodbye,
    HostRanks,
    HostWatch,
    Instructions,
    Lost,
    Message,
    Met,
    SendMessage,
    StartWorkers,
)
from undertow.runtime.launcher_notes import Mark, StartMarks

MAX_MESSAGE_BYTES = 1 << 16
MAX_STRANGERS = 128
# How long sending the last messages may take.
FLUSH_S = 1.0
_decoder: Decoder[Message] = Decoder(Message, "a message of another launcher")
_host_numbers: Decoder[int] = Decoder(Rank, "the number of a host")


@dataclass(eq=False)
class _Connection:
    """A connection to another launcher."""

    sock: socket.socket
    host: int
    received: Messages = field(default_factory=lambda: Messages(MAX_MESSAGE_BYTES))
    outgoing: bytearray = field(default_factory=bytearray)
    is_unreachable: bool = False  # by the network, which counts as silence, not as the end of the connection

    def send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.outgoing:
                del self.outgoing[: self.sock.send(self.outgoing)]

    def receive(self) -> None:
        """Read what has arrived; raise `OSError` when the connection has ended."""
        with contextlib.suppress(BlockingIOError):
            data = self.sock.recv(MAX_MESSAGE_BYTES)
            if not data:
                raise ConnectionResetError("the other launcher closed the connection")
            self.received.feed(data)


class LauncherLink:
    """A launcher's connections to the others.

    One thread calls `listen` or `dial`, then `start`, with several hosts `wait_for_start`, and finally `close`.
    After the start, `fileno` becomes readable when there is a cause to end the workers of this host.
    """

    _own: HostRanks  # set by `start`, like the next
    _watch: HostWatch

    def __init__(self) -> None:
        self.cause = ""  # written once, by the loop
        self.cause_s = 0.0
        self.marks = StartMarks()
        self._news_out, self._news_in = socket.socketpair()
        self._connections: list[_Connection] = []
        self._strangers: Strangers | None = None  # only on the first host
        self._loop = Loop("hosts")

    def fileno(self) -> int:
        return self._news_out.fileno()

    def listen(self, host: str, token: bytes) -> str:
        """Accept connections, on the first host; return the address that the others may dial."""
        listener = open_listener(host, 0)
        self._strangers = Strangers(self._loop, [listener], self._admit, find_missing=_find_missing, most=MAX_STRANGERS)
        self._strangers.start(token)
        return format_address(host, listener.getsockname()[1])

    def dial(self, address: str, token: bytes, *, node_rank: int, timeout_s: float) -> None:
        """Connect to the first host from another one; raise `OSError` or `Refused` if that fails."""
        sock = socket.create_connection(parse_address(address), timeout=timeout_s)
        introduce(sock, token, pack(node_rank))
        sock.setblocking(False)
        self._add(sock, HUB)

    def start(self, node_rank: int, hosts: Sequence[HostRanks]) -> None:
        self._own = hosts[node_rank]
        self._watch = HostWatch(node_rank, hosts, now_s=time.monotonic())
        self._loop.later(BEAT_EVERY_S, self._beat)
        self._loop.start()

    def wait_for_start(self) -> None:
        """Return when all launchers are connected; raise `PeerLost` with the cause if one is lost before that."""
        self._news_out.recv(1)
        if self.cause:
            raise PeerLost(f"{self.cause}; no worker was started")

    def note_ended(self, rank: int, code: int, outcome: str) -> None:
        """Tell the other hosts that a worker of this host has ended with this code.

        Does nothing for a worker that has met the others and was not killed: it has reported the reason itself, and it
        may have ended because it lost another worker.
        """
        if code >= 0 and self._read_marks()[rank] is Mark.MET:
            return
        self.marks.clear(rank - self._own.first_rank)
        how = f"was {outcome}" if code < 0 else f"failed with {outcome}"
        self.post(lambda watch: watch.note_failed(rank, how) if code else watch.note_left(rank))

    def post(self, call: Callable[[HostWatch], Instructions]) -> None:
        """Have the loop call `call` with its `HostWatch`, and carry out the instructions, unless it has ended."""
        self._loop.post(lambda: self._carry_out(call(self._watch)))

    def close(self, reason: str = "") -> None:
        """Leave the other launchers; a `reason` tells them that this one gives up."""
        if reason:
            self.post(lambda watch: watch.note_leaving(reason))
        self._loop.post(self._leave)
        self._loop.join()
        self.marks.close()
        self._close_sockets()
        self._news_out.close()
        self._news_in.close()

    def _beat(self) -> None:
        self._loop.later(BEAT_EVERY_S, self._beat)
        self._carry_out(self._watch.note_marks(self._read_marks()))
        self._carry_out(self._watch.tick(time.monotonic()))

    def _add(self, sock: socket.socket, host: int) -> _Connection:
        connection = _Connection(sock, host)
        self._connections.append(connection)
        # Posted: the message may be a consequence of what calls from other threads record, which must come first.
        self._loop.watch(sock, selectors.EVENT_READ, lambda events: self._loop.post(self._serve, connection))
        return connection

    def _admit(self, stranger: Stranger) -> None:
        host = self._read_number(stranger.introduction[LENGTH_BYTES:])
        connection = self._add(stranger.sock, host)
        if self._watch.is_over:  # the hosts that connected earlier know it already
            self._send(connection, Met() if self._watch.has_met else Lost(self._watch.cause))
        self._carry_out(self._watch.note_arrived(host, time.monotonic()))

    def _read_number(self, body: bytes) -> int:
        number = _host_numbers.decode(body)
        if not self._watch.awaits(number) or any(each.host == number for each in self._connections):
            raise Refused(f"host {number} is not expected here")
        return number

    def _serve(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return  # dropped earlier in this iteration
        try:
            connection.receive()
            connection.send()
            for body in iter(connection.received.take, None):
                message = _decoder.decode(body)
                self._carry_out(self._watch.handle_message(connection.host, message, time.monotonic()))
        except (OSError, Refused, Garbled) as error:
            self._drop(connection)
            if not connection.is_unreachable and not _is_unreachable(error):
                self._carry_out(self._watch.note_closed(connection.host))

    def _carry_out(self, instructions: Instructions) -> None:
        for instruction in instructions:
            if isinstance(instruction, SendMessage):
                for connection in [each for each in self._connections if each.host in instruction.hosts]:
                    self._send(connection, instruction.message)
            elif isinstance(instruction, StartWorkers):
                self._news_in.send(b"x")
            else:
                self.cause, self.cause_s = instruction.cause, time.monotonic()
                self._news_in.send(b"x")
        if self._watch.has_met:
            self._loop.post(self._leave)

    def _read_marks(self) -> dict[int, Mark]:
        return dict(zip(self._own.ranks, self.marks.read(self._own.nproc), strict=True))

    def _send(self, connection: _Connection, message: Message) -> None:
        connection.outgoing += pack(message)
        try:
            connection.send()
        except OSError as error:  # reading notices the end too, but not its reason
            connection.is_unreachable |= _is_unreachable(error)

    def _drop(self, connection: _Connection) -> None:
        self._connections.remove(connection)
        self._loop.unwatch(connection.sock)
        connection.sock.close()

    def _leave(self) -> None:
        """Say goodbye, send what is pending, close all connections, and end the loop."""
        deadline_s = time.monotonic() + FLUSH_S
        for connection in self._connections:
            connection.outgoing += pack(Goodbye())
            with contextlib.suppress(OSError):
                connection.sock.settimeout(max(0.01, deadline_s - time.monotonic()))
                connection.sock.sendall(connection.outgoing)
                connection.sock.shutdown(socket.SHUT_WR)
        self._close_sockets()
        self._loop.end()

    def _close_sockets(self) -> None:
        for connection in self._connections:
            connection.sock.close()
        self._connections.clear()
        if self._strangers is not None:
            self._strangers.abandon()


def _find_missing(introduction: bytes) -> int:
    messages = Messages(MAX_MESSAGE_BYTES)
    messages.feed(introduction)
    return messages.missing_bytes


def _is_unreachable(error: Exception) -> bool:
    """Whether the network does not reach the host; it may come back, if it sleeps or its cable is out."""
    return isinstance(error, OSError) and error.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
