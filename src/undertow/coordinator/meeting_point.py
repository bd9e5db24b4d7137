"""The meeting point: a small TCP server where the processes of a job find each other.

In: connections, each of which first proves that it knows the token and then joins
one meeting.  Out: one reply per connection, after which it is closed.
One thread runs one selector loop, and no connection may hold it up: nothing in
the loop blocks, strangers have a deadline and a bounded number of places, and
nothing is parsed before the handshake is done.  Nothing is ever unpickled.

Messages after the handshake: 4 bytes length (little endian), then msgpack.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from undertow.coordinator.meeting import MAX_PAYLOAD_BYTES, Join, Meetings, Replies, Reply
from undertow.core.decoding import Decoder
from undertow.errors import ConfigError, Garbled, Refused
from undertow.wire.auth import Handshake, Role
from undertow.wire.routes import look_up
from undertow.wire.strangers import STRANGER_TIMEOUT_S, find_surplus

LENGTH_BYTES = 4
MAX_REQUEST_BYTES = MAX_PAYLOAD_BYTES + 1024
MAX_STRANGERS = 128
# How long a friend may take to send its request, or to read its reply.
TRANSFER_TIMEOUT_S = 30.0
LONGEST_SLEEP_S = 3600.0  # the system takes no timeout of more than 24 days
# Small packets pass also where a switch drops those that the interfaces allow (jumbo frames): the hosts meet, and
# what comes after can say so.
SEGMENT_BYTES = 1200

log = logging.getLogger("undertow.rendezvous")
_requests: Decoder[Join] = Decoder(Join, "a request")


@dataclass(eq=False)
class _Guest:
    """One connection: a stranger until its handshake is done, then a friend."""

    sock: socket.socket
    handshake: Handshake
    deadline_s: float  # of the handshake, then of the request, then of the reply
    received: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    seated: bool = False  # waits in a meeting, whose own deadline counts instead
    answered: bool = False  # closed as soon as `outgoing` is empty


class MeetingPoint:
    """Serves any number of meetings.  `start` and `close` belong to one thread."""

    def __init__(
        self, host: str, port: int, token: bytes, *, on_complete: Callable[[str], None] = lambda meeting: None
    ) -> None:
        self.refused = 0  # connections turned away; only the loop writes it
        self._token = token
        self._meetings = Meetings()
        self._on_complete = on_complete  # called by the loop, with the name of the meeting
        self._guests: dict[socket.socket, _Guest] = {}  # oldest first
        self._listener = open_listener(host, port)
        self.address = format_address(host, self._listener.getsockname()[1])
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="undertow-meeting-point", daemon=True)

    def start(self) -> None:
        """Begin to answer; connections made before this wait in the backlog."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, deliver the replies under way, drop everybody who still waits."""
        if self._thread.is_alive():
            self._wake_in.send(b"x")
            self._thread.join()
        self._selector.close()
        for sock in (self._listener, self._wake_in, self._wake_out, *self._guests):
            sock.close()
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        try:
            while self._guests or not self._closing:
                self._turn()
        except Exception as error:  # kept for `close`: a thread never dies unnoticed
            self._failure = error
            self._listener.close()

    def _turn(self) -> None:
        for key, events in self._selector.select(self._patience_s()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_out:
                self._stop_listening()
            else:
                self._serve(key.data, events)
        now_s = time.monotonic()
        self._deliver(self._meetings.expire(now_s))
        for guest in [guest for guest in self._guests.values() if not guest.seated and guest.deadline_s <= now_s]:
            self._refuse(guest, "it was silent for too long")

    def _patience_s(self) -> float | None:
        deadlines = [guest.deadline_s for guest in self._guests.values() if not guest.seated]
        meeting_s = self._meetings.next_deadline_s()
        if meeting_s is not None:
            deadlines.append(meeting_s)
        return min(LONGEST_SLEEP_S, max(0.0, min(deadlines) - time.monotonic())) if deadlines else None

    def _accept(self) -> None:
        strangers = [guest for guest in self._guests.values() if not guest.handshake.done]
        oldest = find_surplus(strangers, MAX_STRANGERS)
        if oldest is not None:
            self._refuse(oldest, "too many strangers at once")
        try:
            sock, _ = self._listener.accept()
        except OSError:
            time.sleep(0.01)  # out of file descriptors perhaps: try again, but not in a busy loop
            return
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        guest = _Guest(sock, Handshake(Role.LISTENER, self._token), time.monotonic() + STRANGER_TIMEOUT_S)
        self._guests[sock] = guest
        self._selector.register(sock, selectors.EVENT_READ, guest)

    def _stop_listening(self) -> None:
        self._closing = True
        for sock in (self._listener, self._wake_out):
            self._selector.unregister(sock)
        self._listener.close()
        for guest in [guest for guest in self._guests.values() if not guest.answered]:
            self._drop(guest)

    def _serve(self, guest: _Guest, events: int) -> None:
        if guest.sock not in self._guests:
            return  # dropped earlier in this turn
        try:
            if events & selectors.EVENT_READ:
                self._receive(guest)
            self._send(guest)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(guest)
        except (Refused, Garbled) as error:
            self._refuse(guest, str(error))

    def _receive(self, guest: _Guest) -> None:
        wants = guest.handshake.wants or _missing_bytes(guest.received)
        data = guest.sock.recv(min(wants, 1 << 16))
        if not data:
            raise ConnectionResetError("the guest left")
        if guest.handshake.wants:
            guest.outgoing += guest.handshake.feed(data)
            if guest.handshake.done:
                guest.deadline_s = time.monotonic() + TRANSFER_TIMEOUT_S
        elif guest.seated or guest.answered:
            raise Refused("it goes on talking after its request")
        else:
            guest.received += data
            self._seat_if_complete(guest)

    def _seat_if_complete(self, guest: _Guest) -> None:
        if _missing_bytes(guest.received):
            return
        request = _requests.decode(bytes(guest.received[LENGTH_BYTES:]))
        guest.received.clear()
        guest.seated = True
        replies = self._meetings.join(guest, request, time.monotonic())
        if replies and not replies[0][1].complaint:
            self._on_complete(request.meeting)
        self._deliver(replies)

    def _deliver(self, replies: Replies) -> None:
        packed: dict[int, bytes] = {}  # a complete meeting answers all with one reply: encode it once
        for guest, reply in replies:
            assert isinstance(guest, _Guest)
            if id(reply) not in packed:
                packed[id(reply)] = pack(reply)
            guest.outgoing += packed[id(reply)]
            guest.seated, guest.answered = False, True
            guest.deadline_s = time.monotonic() + TRANSFER_TIMEOUT_S
            self._serve(guest, selectors.EVENT_WRITE)

    def _send(self, guest: _Guest) -> None:
        if guest.sock not in self._guests:
            return  # answered, sent and closed while its request was served
        if guest.outgoing:
            del guest.outgoing[: guest.sock.send(guest.outgoing)]
        if guest.answered and not guest.outgoing:
            return self._drop(guest)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if guest.outgoing else 0)
        self._selector.modify(guest.sock, events, guest)

    def _refuse(self, guest: _Guest, reason: str) -> None:
        self.refused += 1
        if self.refused == 1:  # once: a port scanner must not fill the log
            log.warning("%s refused a connection: %s; further ones are only counted", self.address, reason)
        self._drop(guest)

    def _drop(self, guest: _Guest) -> None:
        self._meetings.leave(guest)
        self._guests.pop(guest.sock, None)
        self._selector.unregister(guest.sock)
        guest.sock.close()


def pack(message: Join | Reply) -> bytes:
    """A message with its length in front."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def format_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _missing_bytes(received: bytearray) -> int:
    """How many bytes of the request are still to come; 0 when it is complete."""
    if len(received) < LENGTH_BYTES:
        return LENGTH_BYTES - len(received)
    length = int.from_bytes(received[:LENGTH_BYTES], "little")
    if not 0 < length <= MAX_REQUEST_BYTES:
        raise Refused(f"a request of {length} bytes is not possible (at most {MAX_REQUEST_BYTES})")
    return LENGTH_BYTES + length - len(received)


def open_listener(host: str, port: int) -> socket.socket:
    """Listen on the interface that has this address, and on no other."""
    try:
        family, _, _, _, where = look_up(host, port)[0]
    except OSError as error:
        raise ConfigError(f"cannot listen on {host!r}: {error.strerror}; give a name or address of this host") from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restarted job needs the same port at once
        with contextlib.suppress(OSError):  # of both ends, in both directions; only a wish
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        sock.bind(where)
        sock.listen(1024)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        reason = f"{error.strerror}; choose a free port"
        if error.errno == errno.EADDRNOTAVAIL:
            reason = f"{host} is not an address of this host; give one of its own (see: ip address)"
        raise ConfigError(f"cannot listen on {format_address(host, port)}: {reason}") from None
    return sock
