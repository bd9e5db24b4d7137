"""Connections between the launchers of a job, from the rendezvous of the hosts until the workers have met.

In: the address of the first launcher, the job's token, the supervisor's observations, the start marks of the workers.
Out: when to start the workers; the first cause to end them, once.
One thread owns all sockets and the `HostWatch`, which decides; other threads only post calls to it.
Every connection starts with the handshake of `engine/wire/auth.py`; nothing is parsed before it, and nothing blocks.

A message after the handshake is a length of 4 bytes (little endian), then msgpack; a host's first message is its
number.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from undertow.decoding import Decoder, Rank
from undertow.engine.coordinator.rendezvous import parse_address
from undertow.engine.wire.auth import Handshake, Role, shake_hands
from undertow.engine.wire.listeners import format_address, open_listener
from undertow.engine.wire.strangers import STRANGER_TIMEOUT_S, find_surplus
from undertow.engine.wire.streams import Messages, pack
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
    """A connection to another launcher, or to a stranger whose handshake is not complete."""

    sock: socket.socket
    handshake: Handshake | None  # None: already complete
    host: int | None = None  # None until it has sent its number
    since_s: float = field(default_factory=time.monotonic)
    received: Messages = field(default_factory=lambda: Messages(MAX_MESSAGE_BYTES))
    outgoing: bytearray = field(default_factory=bytearray)
    is_unreachable: bool = False  # by the network, which counts as silence, not as the end of the connection

    def send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.outgoing:
                del self.outgoing[: self.sock.send(self.outgoing)]

    def receive(self) -> None:
        """Read what has arrived; raise `OSError` when the connection has ended, `Refused` if the handshake fails."""
        with contextlib.suppress(BlockingIOError):
            wants = self.handshake.wants if self.handshake else 0
            data = self.sock.recv(wants or MAX_MESSAGE_BYTES)
            if not data:
                raise ConnectionResetError("the other launcher closed the connection")
            if wants and self.handshake:
                self.outgoing += self.handshake.feed(data)
            else:
                self.received.feed(data)


class LauncherLink:
    """A launcher's connections to the others.

    One thread calls `listen` or `dial`, then `start`, with several hosts `wait_for_start`, and finally `close`.
    After the start, `fileno` becomes readable when there is a cause to end the workers of this host.
    """

    def __init__(self) -> None:
        self.cause = ""  # written once, by the thread
        self.cause_s = 0.0
        self.marks = StartMarks()
        self._own: HostRanks | None = None
        self._news_out, self._news_in = socket.socketpair()
        self._wake_out, self._wake_in = socket.socketpair()
        self._calls: queue.SimpleQueue[Callable[[HostWatch], Instructions]] = queue.SimpleQueue()
        self._connections: list[_Connection] = []
        self._listener: socket.socket | None = None
        self._token = b""
        self._selector = selectors.DefaultSelector()
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def fileno(self) -> int:
        return self._news_out.fileno()

    def listen(self, host: str, token: bytes) -> str:
        """Accept connections, on the first host; return the address that the others may dial."""
        self._listener, self._token = open_listener(host, 0), token
        return format_address(host, self._listener.getsockname()[1])

    def dial(self, address: str, token: bytes, *, node_rank: int, timeout_s: float) -> None:
        """Connect to the first host from another one; raise `OSError` or `Refused` if that fails."""
        sock = socket.create_connection(parse_address(address), timeout=timeout_s)
        try:
            shake_hands(sock, Role.DIALER, token)
            sock.sendall(pack(node_rank))
        except BaseException:
            sock.close()
            raise
        sock.setblocking(False)
        self._connections.append(_Connection(sock, None, host=HUB))

    def start(self, node_rank: int, hosts: Sequence[HostRanks]) -> None:
        self._own = hosts[node_rank]
        watch = HostWatch(node_rank, hosts, now_s=time.monotonic())
        self._thread = threading.Thread(target=self._run, args=[watch], name="undertow-hosts", daemon=True)
        self._thread.start()

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
        assert self._own is not None
        if code >= 0 and self._read_marks()[rank] is Mark.MET:
            return
        self.marks.clear(rank - self._own.first_rank)
        how = f"was {outcome}" if code < 0 else f"failed with {outcome}"
        self.post(lambda watch: watch.note_failed(rank, how) if code else watch.note_left(rank))

    def post(self, call: Callable[[HostWatch], Instructions]) -> None:
        """Have the thread call `call` with its `HostWatch`, and carry out the instructions that it returns."""
        if self._thread is not None and self._thread.is_alive():  # it ends when the workers have met
            self._calls.put(call)
            self._wake_in.send(b"x")

    def close(self, reason: str = "") -> None:
        """Leave the other launchers; a `reason` tells them that this one gives up."""
        if self._thread is not None:
            if reason:
                self.post(lambda watch: watch.note_leaving(reason))
            self._is_closing = True
            self._wake_in.send(b"x")
            self._thread.join()
        self.marks.close()
        self._selector.close()
        connections = [connection.sock for connection in self._connections]
        listeners = [self._listener] if self._listener else []
        for sock in (*connections, *listeners, self._news_out, self._news_in, self._wake_out, self._wake_in):
            sock.close()

    def _run(self, watch: HostWatch) -> None:
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)
        for connection in self._connections:
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)
        next_s = time.monotonic() + BEAT_EVERY_S
        while not self._is_closing and not watch.has_met:
            self._run_once(watch, next_s)
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + BEAT_EVERY_S
                self._drop_slow_strangers()
                self._carry_out(watch.note_marks(self._read_marks()))
                self._carry_out(watch.tick(time.monotonic()))
        self._make_calls(watch)
        self._leave()

    def _run_once(self, watch: HostWatch, until_s: float) -> None:
        ready = self._selector.select(max(0.0, until_s - time.monotonic()))
        self._make_calls(watch)  # first: a message from another host may be a consequence of what these calls record
        for key, _ in ready:
            if key.fileobj is self._wake_out:
                self._wake_out.recv(4096)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._serve(key.data, watch)

    def _make_calls(self, watch: HostWatch) -> None:
        while not self._calls.empty():
            self._carry_out(self._calls.get()(watch))

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            time.sleep(0.01)  # out of file descriptors perhaps: try again, but not in a busy loop
            return
        strangers = [connection for connection in self._connections if connection.host is None]
        oldest = find_surplus(strangers, MAX_STRANGERS)
        if oldest is not None:
            self._drop(oldest)
        sock.setblocking(False)
        connection = _Connection(sock, Handshake(Role.LISTENER, self._token))
        self._connections.append(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _serve(self, connection: _Connection, watch: HostWatch) -> None:
        if connection not in self._connections:
            return  # dropped earlier in this iteration
        try:
            connection.receive()
            connection.send()
            for body in iter(connection.received.take, None):
                self._take(connection, body, watch)
        except (OSError, Refused, Garbled) as error:
            self._drop(connection)
            if connection.host is not None and not connection.is_unreachable and not _is_unreachable(error):
                self._carry_out(watch.note_closed(connection.host))

    def _take(self, connection: _Connection, body: bytes, watch: HostWatch) -> None:
        if connection.host is not None:
            self._carry_out(watch.handle_message(connection.host, _decoder.decode(body), time.monotonic()))
            return
        connection.host = self._read_number(body, watch)
        if watch.is_over:  # the hosts that connected earlier know it already
            self._send(connection, Met() if watch.has_met else Lost(watch.cause))
        self._carry_out(watch.note_arrived(connection.host, time.monotonic()))

    def _read_number(self, body: bytes, watch: HostWatch) -> int:
        number = _host_numbers.decode(body)
        if not watch.awaits(number) or any(each.host == number for each in self._connections):
            raise Refused(f"host {number} is not expected here")
        return number

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

    def _read_marks(self) -> dict[int, Mark]:
        assert self._own is not None
        return dict(zip(self._own.ranks, self.marks.read(self._own.nproc), strict=True))

    def _send(self, connection: _Connection, message: Message) -> None:
        connection.outgoing += pack(message)
        try:
            connection.send()
        except OSError as error:  # reading notices the end too, but not its reason
            connection.is_unreachable |= _is_unreachable(error)

    def _drop_slow_strangers(self) -> None:
        for connection in [each for each in self._connections if each.host is None]:
            if time.monotonic() - connection.since_s > STRANGER_TIMEOUT_S:
                self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._connections.remove(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _leave(self) -> None:
        """Say goodbye, send what is pending, and close all connections."""
        deadline_s = time.monotonic() + FLUSH_S
        for connection in self._connections:
            connection.outgoing += pack(Goodbye())
            with contextlib.suppress(OSError):
                connection.sock.settimeout(max(0.01, deadline_s - time.monotonic()))
                connection.sock.sendall(connection.outgoing)
                connection.sock.shutdown(socket.SHUT_WR)
            connection.sock.close()
        self._connections.clear()
        if self._listener is not None:
            self._listener.close()


def _is_unreachable(error: Exception) -> bool:
    """Whether the network does not reach the host; it may come back, if it sleeps or its cable is out."""
    return isinstance(error, OSError) and error.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
