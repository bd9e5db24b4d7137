"""The connections between the launchers of a job, from the meeting of the hosts until the workers have met.

In: the address of the first launcher, the job's token, what the supervisor sees, the marks of the workers.
Out: when to start the workers; the first cause to end them, once.
One thread owns all sockets and the `HostWatch`, which decides; other threads only post calls to it.
Every connection starts with the handshake of `wire/auth.py`; nothing is parsed before, and nothing blocks the thread.

Messages after the handshake: 4 bytes length (little endian), then msgpack; the first one of a host is its number.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from undertow.coordinator.meeting_point import LENGTH_BYTES, format_address, open_listener
from undertow.coordinator.rendezvous import parse_address
from undertow.coordinator.start_marks import Mark, StartMarks
from undertow.core.decoding import Decoder, Rank
from undertow.errors import Garbled, PeerLost, Refused
from undertow.launch.host_watch import (
    BEAT_EVERY_S,
    HUB,
    Goodbye,
    HostPlace,
    HostWatch,
    Instructions,
    Lost,
    Message,
    Met,
    StartWorkers,
    Tell,
)
from undertow.wire.auth import Handshake, Role, shake_hands
from undertow.wire.strangers import STRANGER_TIMEOUT_S, find_surplus

MAX_MESSAGE_BYTES = 1 << 16
MAX_STRANGERS = 128
# How long the last messages may take to leave.
FLUSH_S = 1.0
_decoder: Decoder[Message] = Decoder(Message, "a message of another launcher")
_numbers: Decoder[int] = Decoder(Rank, "the number of a host")


@dataclass(eq=False)
class _Connection:
    """One other launcher, or a stranger whose handshake is not done."""

    sock: socket.socket
    handshake: Handshake | None  # None: done before
    host: int | None = None  # None until it has said its number
    since_s: float = field(default_factory=time.monotonic)
    received: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    is_unreachable: bool = False  # the network does not reach it: that is silence, not an end

    def send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.outgoing:
                del self.outgoing[: self.sock.send(self.outgoing)]

    def receive(self) -> None:
        """Raises `OSError` when the connection has ended, `Refused` if it is none of ours."""
        with contextlib.suppress(BlockingIOError):
            wants = self.handshake.wants if self.handshake else 0
            data = self.sock.recv(wants or MAX_MESSAGE_BYTES)
            if not data:
                raise ConnectionResetError("the other launcher closed the connection")
            if wants and self.handshake:
                self.outgoing += self.handshake.feed(data)
            else:
                self.received += data

    def take_messages(self) -> Iterator[bytes]:
        while len(self.received) >= LENGTH_BYTES:
            length = int.from_bytes(self.received[:LENGTH_BYTES], "little")
            if length > MAX_MESSAGE_BYTES:
                raise Refused(f"a message of {length} bytes is not possible")
            if len(self.received) < LENGTH_BYTES + length:
                return
            body = bytes(self.received[LENGTH_BYTES : LENGTH_BYTES + length])
            del self.received[: LENGTH_BYTES + length]
            yield body


class HostLine:
    """A launcher's line to the others.  `listen` or `dial`, then `start`, then `close`, all by one thread.

    On several hosts `wait_for_start` follows `start`.  From then on `fileno` becomes readable when there is a cause to
    end the workers of this host.
    """

    def __init__(self) -> None:
        self.cause = ""  # written once, by the thread
        self.cause_s = 0.0
        self.marks = StartMarks()
        self._place: HostPlace | None = None
        self._news_out, self._news_in = socket.socketpair()
        self._wake_out, self._wake_in = socket.socketpair()
        self._calls: queue.SimpleQueue[Callable[[HostWatch], Instructions]] = queue.SimpleQueue()
        self._connections: list[_Connection] = []
        self._listener: socket.socket | None = None
        self._token = b""
        self._selector = selectors.DefaultSelector()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._watch: HostWatch | None = None

    def fileno(self) -> int:
        return self._news_out.fileno()

    def listen(self, host: str, token: bytes) -> str:
        """On the first host: returns the address for the others, who may dial from now on."""
        self._listener, self._token = open_listener(host, 0), token
        return format_address(host, self._listener.getsockname()[1])

    def dial(self, address: str, token: bytes, *, node_rank: int, timeout_s: float) -> None:
        """On the other hosts: connect to the first one.  Raises `OSError` or `Refused`."""
        sock = socket.create_connection(parse_address(address), timeout=timeout_s)
        try:
            shake_hands(sock, Role.DIALER, token)
            sock.sendall(_pack(node_rank))
        except BaseException:
            sock.close()
            raise
        sock.setblocking(False)
        self._connections.append(_Connection(sock, None, host=HUB))

    def start(self, node_rank: int, places: Sequence[HostPlace]) -> None:
        self._place = places[node_rank]
        self._watch = HostWatch(node_rank, places, now_s=time.monotonic())
        self._thread = threading.Thread(target=self._run, args=[self._watch], name="undertow-hosts", daemon=True)
        self._thread.start()

    def wait_for_start(self) -> None:
        """Return when all launchers are connected; raises `PeerLost` with the cause if one was lost before."""
        assert self._watch is not None
        self._news_out.recv(1)
        if self.cause:
            raise PeerLost(f"{self.cause}; no worker was started")

    def note_ended(self, rank: int, code: int, words: str) -> None:
        """A worker of this host has ended with this code.

        One that has met the others and was not killed has told them why by itself; it may be a loss of another one.
        """
        assert self._place is not None
        if code >= 0 and self._read_marks()[rank] is Mark.MET:
            return
        self.marks.clear(rank - self._place.first_rank)
        how = f"was {words}" if code < 0 else f"failed with {words}"
        self.post(lambda watch: watch.note_failed(rank, how) if code else watch.note_left(rank))

    def post(self, call: Callable[[HostWatch], Instructions]) -> None:
        """Let the thread obey what `call` decides."""
        if self._thread is not None and self._thread.is_alive():  # it ends when the workers have met
            self._calls.put(call)
            self._wake_in.send(b"x")

    def close(self, reason: str = "") -> None:
        """Leave; with a `reason` the others hear that it is not in order."""
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
            self._turn(watch, next_s)
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + BEAT_EVERY_S
                self._drop_slow_strangers()
                self._obey(watch.note_marks(self._read_marks()))
                self._obey(watch.tick(time.monotonic()))
        self._make_calls(watch)
        self._leave()

    def _turn(self, watch: HostWatch, until_s: float) -> None:
        ready = self._selector.select(max(0.0, until_s - time.monotonic()))
        self._make_calls(watch)  # first: what another host tells may be a consequence
        for key, _ in ready:
            if key.fileobj is self._wake_out:
                self._wake_out.recv(4096)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._serve(key.data, watch)

    def _make_calls(self, watch: HostWatch) -> None:
        while not self._calls.empty():
            self._obey(self._calls.get()(watch))

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
            return  # dropped earlier in this turn
        try:
            connection.receive()
            connection.send()
            for body in connection.take_messages():
                self._take(connection, body, watch)
        except (OSError, Refused, Garbled) as error:
            self._drop(connection)
            if connection.host is not None and not connection.is_unreachable and not _is_unreachable(error):
                self._obey(watch.note_closed(connection.host))

    def _take(self, connection: _Connection, body: bytes, watch: HostWatch) -> None:
        if connection.host is not None:
            self._obey(watch.hear(connection.host, _decoder.decode(body), time.monotonic()))
            return
        connection.host = self._read_number(body, watch)
        if watch.is_over:  # it was told to the others before
            self._send(connection, Met() if watch.has_met else Lost(watch.cause))
        self._obey(watch.note_arrived(connection.host, time.monotonic()))

    def _read_number(self, body: bytes, watch: HostWatch) -> int:
        number = _numbers.decode(body)
        if not watch.awaits(number) or any(each.host == number for each in self._connections):
            raise Refused(f"host {number} is not awaited here")
        return number

    def _obey(self, instructions: Instructions) -> None:
        for instruction in instructions:
            if isinstance(instruction, Tell):
                for connection in [each for each in self._connections if each.host in instruction.hosts]:
                    self._send(connection, instruction.message)
            elif isinstance(instruction, StartWorkers):
                self._news_in.send(b"x")
            else:
                self.cause, self.cause_s = instruction.cause, time.monotonic()
                self._news_in.send(b"x")

    def _read_marks(self) -> dict[int, Mark]:
        assert self._place is not None
        return dict(zip(self._place.ranks, self.marks.read(self._place.nproc), strict=True))

    def _send(self, connection: _Connection, message: Message) -> None:
        connection.outgoing += _pack(message)
        try:
            connection.send()
        except OSError as error:  # its end is noticed where it is read, but there it is only an end
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
        """Say goodbye, and close all connections when what was told has left."""
        deadline_s = time.monotonic() + FLUSH_S
        for connection in self._connections:
            connection.outgoing += _pack(Goodbye())
            with contextlib.suppress(OSError):
                connection.sock.settimeout(max(0.01, deadline_s - time.monotonic()))
                connection.sock.sendall(connection.outgoing)
                connection.sock.shutdown(socket.SHUT_WR)
            connection.sock.close()
        self._connections.clear()
        if self._listener is not None:
            self._listener.close()


def _is_unreachable(error: Exception) -> bool:
    """Whether the network has given up: a host that sleeps, or whose cable is out, may come back."""
    return isinstance(error, OSError) and error.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


def _pack(message: Message | int) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body
