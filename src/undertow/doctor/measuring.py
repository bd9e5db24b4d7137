"""Latency, clock offset and bandwidth of the way to another host's door.

In: its address, the token.  Out: a `Measured`.  Every step has a deadline.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Sequence

import msgspec

from undertow.coordinator.rendezvous import parse_address
from undertow.core.decoding import Decoder, Finite, Rank, Seconds
from undertow.doctor.bulk import STALL_S, Received, drop_the_rest, pump, receive
from undertow.doctor.letters import STAMP, Echo, Give, Take, read_exactly, read_letter, send_letter
from undertow.doctor.reach import CONNECT_S, Reach, classify
from undertow.errors import Refused
from undertow.wire.auth import Role, shake_hands

ECHOES = 50
ANSWER_S = 5.0
LATEST_S = 1e12  # no clock shows more
_RECEIVED: Decoder[Received] = Decoder(Received)


class Trip(msgspec.Struct, frozen=True):
    """One small message there and back."""

    sent_s: float  # own wall clock
    there_s: float  # the other host's wall clock
    time_s: float


class Measured(msgspec.Struct, frozen=True):
    dialer: Rank
    listener: Rank
    least_s: Seconds = 0.0  # of all round trips
    median_s: Seconds = 0.0
    offset_s: Finite = 0.0  # by how much the listener's clock is ahead of the dialer's
    outward: Received | None = None  # from dialer to listener
    inward: Received | None = None
    error: str = ""  # what ended the measurement early

    def rate_bytes_per_s(self, sender: int) -> float:
        received = self.outward if sender == self.dialer else self.inward
        return received.rate_bytes_per_s if received else 0.0


def try_door(address: str, token: bytes) -> Reach:
    """Can a connection be opened, as a worker would, and does one message come back?"""
    try:
        _send_echoes(address, token, 1)
    except (OSError, Refused) as error:
        return classify(error)
    return Reach.REACHED


def measure(pair: tuple[int, int], address: str, token: bytes, *, duration_s: float) -> Measured:
    """From the first of the pair, which is this host, to the second."""
    known = Measured(*pair)
    try:
        trips = _send_echoes(address, token, ECHOES)
        times = [trip.time_s for trip in trips]
        known = msgspec.structs.replace(
            known, least_s=min(times), median_s=statistics.median(times), offset_s=estimate_offset_s(trips)
        )
        known = msgspec.structs.replace(known, outward=_measure_outward(address, token, duration_s))
        return msgspec.structs.replace(known, inward=_measure_inward(address, token, duration_s))
    except (OSError, Refused) as error:
        return msgspec.structs.replace(known, error=str(error) or type(error).__name__)


def estimate_offset_s(trips: Sequence[Trip]) -> float:
    """The quickest trip leaves the least room for error: at most half of its time."""
    quickest = min(trips, key=lambda trip: trip.time_s)
    return quickest.there_s - (quickest.sent_s + quickest.time_s / 2)


def _dial(address: str, token: bytes) -> socket.socket:
    sock = socket.create_connection(parse_address(address), timeout=CONNECT_S)
    try:
        sock.settimeout(ANSWER_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        shake_hands(sock, Role.DIALER, token)
    except BaseException:
        sock.close()
        raise
    return sock


def _send_echoes(address: str, token: bytes, count: int) -> list[Trip]:
    with _dial(address, token) as sock:
        send_letter(sock, Echo(count))
        return [_send_echo(sock) for _ in range(count)]


def _send_echo(sock: socket.socket) -> Trip:
    sent_s, start_s = time.time(), time.perf_counter()
    sock.sendall(STAMP.pack(0.0))
    (there_s,) = STAMP.unpack(read_exactly(sock, STAMP.size))
    if not abs(there_s) < LATEST_S:
        raise Refused(f"the other host says that its clock shows {there_s} s")
    return Trip(sent_s, there_s, time.perf_counter() - start_s)


def _measure_outward(address: str, token: bytes, duration_s: float) -> Received:
    with _dial(address, token) as sock:
        send_letter(sock, Take(duration_s))
        drop_the_rest(sock)
        pump(sock, duration_s)
        sock.settimeout(2 * STALL_S)
        return read_letter(sock, _RECEIVED)


def _measure_inward(address: str, token: bytes, duration_s: float) -> Received:
    with _dial(address, token) as sock:
        send_letter(sock, Give(duration_s))
        drop_the_rest(sock)
        return receive(sock, duration_s)
