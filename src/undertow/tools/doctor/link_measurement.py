"""Connects to another host, and measures latency, clock offset and bandwidth of the link with its probe server.

In: the server's address, the token.  Out: the `ConnectResult` of an attempt, its explanation and advice; a
`LinkMeasurement`.  Every step has a deadline.
"""

from __future__ import annotations

import enum
import errno
import socket
import statistics
import time
from collections.abc import Sequence

import msgspec

from undertow.decoding import Decoder, Finite, Rank, Seconds
from undertow.engine.coordinator.rendezvous import parse_address
from undertow.engine.wire.auth import introduce
from undertow.engine.wire.streams import discard_unsent, pack, read_exactly
from undertow.errors import Refused
from undertow.tools.doctor.probe_protocol import (
    STALL_S,
    STAMP,
    Echo,
    Give,
    Received,
    Take,
    pump,
    read_probe_message,
    receive,
)

ECHOES = 50
ANSWER_S = 5.0
LATEST_S = 1e12  # a clock that shows more is wrong
_RECEIVED: Decoder[Received] = Decoder(Received)
CONNECT_S = 3.0  # TCP sends a lost packet again after one second, and a second time after three


class RoundTrip(msgspec.Struct, frozen=True):
    """Round trip of one small message."""

    sent_s: float  # by this host's wall clock
    there_s: float  # by the other host's wall clock
    time_s: float


class LinkMeasurement(msgspec.Struct, frozen=True):
    """Measurement of the link between two hosts."""

    dialer: Rank
    listener: Rank
    least_s: Seconds = 0.0  # the fastest round trip
    median_s: Seconds = 0.0
    offset_s: Finite = 0.0  # by how much the listener's clock is ahead of the dialer's
    outward: Received | None = None  # from dialer to listener
    inward: Received | None = None
    error: str = ""  # why the measurement ended early

    def rate_bytes_per_s(self, sender: int) -> float:
        received = self.outward if sender == self.dialer else self.inward
        return received.rate_bytes_per_s if received else 0.0


def try_connection(address: str, token: bytes) -> ConnectResult:
    """Open a connection as a worker would, and send one message there and back."""
    try:
        _send_echoes(address, token, 1)
    except (OSError, Refused) as error:
        return classify(error)
    return ConnectResult.REACHED


def measure(pair: tuple[int, int], address: str, token: bytes, *, duration_s: float) -> LinkMeasurement:
    """Measure the link from the first host of the pair, which is this one, to the second."""
    known = LinkMeasurement(*pair)
    try:
        round_trips = _send_echoes(address, token, ECHOES)
        times = [round_trip.time_s for round_trip in round_trips]
        known = msgspec.structs.replace(
            known, least_s=min(times), median_s=statistics.median(times), offset_s=estimate_offset_s(round_trips)
        )
        known = msgspec.structs.replace(known, outward=_measure_outward(address, token, duration_s))
        return msgspec.structs.replace(known, inward=_measure_inward(address, token, duration_s))
    except (OSError, Refused) as error:
        return msgspec.structs.replace(known, error=str(error) or type(error).__name__)


def estimate_offset_s(round_trips: Sequence[RoundTrip]) -> float:
    """Estimate by how much the other clock is ahead.  The fastest round trip has the least error: half of its time."""
    quickest = min(round_trips, key=lambda round_trip: round_trip.time_s)
    return quickest.there_s - (quickest.sent_s + quickest.time_s / 2)


def _dial(address: str, token: bytes) -> socket.socket:
    sock = socket.create_connection(parse_address(address), timeout=CONNECT_S)
    sock.settimeout(ANSWER_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return introduce(sock, token)


def _send_echoes(address: str, token: bytes, count: int) -> list[RoundTrip]:
    with _dial(address, token) as sock:
        sock.sendall(pack(Echo(count)))
        return [_send_echo(sock) for _ in range(count)]


def _send_echo(sock: socket.socket) -> RoundTrip:
    sent_s, start_s = time.time(), time.perf_counter()
    sock.sendall(STAMP.pack(0.0))
    (there_s,) = STAMP.unpack(read_exactly(sock, STAMP.size))
    if not abs(there_s) < LATEST_S:
        raise Refused(f"the other host's clock shows an impossible time: {there_s} s")
    return RoundTrip(sent_s, there_s, time.perf_counter() - start_s)


def _measure_outward(address: str, token: bytes, duration_s: float) -> Received:
    with _dial(address, token) as sock:
        sock.sendall(pack(Take(duration_s)))
        discard_unsent(sock)
        pump(sock, duration_s)
        sock.settimeout(2 * STALL_S)
        return read_probe_message(sock, _RECEIVED)


def _measure_inward(address: str, token: bytes, duration_s: float) -> Received:
    with _dial(address, token) as sock:
        sock.sendall(pack(Give(duration_s)))
        discard_unsent(sock)
        return receive(sock, duration_s)


class ConnectResult(enum.Enum):
    REACHED = "reached"
    REFUSED = "refused"  # the host answers, but nothing listens there
    SILENT = "silent"  # nothing answers
    NO_ROUTE = "no route"
    FORBIDDEN = "forbidden"  # by this host's own firewall or routes
    UNKNOWN = "unknown name"
    STRANGER = "stranger"  # another program listens there, or a doctor with another token
    FAILED = "failed"
    NOT_TRIED = "not tried"


_BY_NUMBER = {
    errno.ECONNREFUSED: ConnectResult.REFUSED,
    errno.ETIMEDOUT: ConnectResult.SILENT,
    errno.EHOSTUNREACH: ConnectResult.NO_ROUTE,
    errno.ENETUNREACH: ConnectResult.NO_ROUTE,
    errno.EADDRNOTAVAIL: ConnectResult.NO_ROUTE,
    errno.EINVAL: ConnectResult.FORBIDDEN,  # a blackhole route
    errno.EACCES: ConnectResult.FORBIDDEN,
    errno.EPERM: ConnectResult.FORBIDDEN,
}
DESCRIPTIONS = {
    ConnectResult.REFUSED: "the connection is refused immediately",
    ConnectResult.SILENT: f"no answer within {CONNECT_S:g} s",
    ConnectResult.NO_ROUTE: "there is no route to it, or no host answers at that address",
    ConnectResult.FORBIDDEN: "the firewall or the routes of the dialling host forbid the connection",
    ConnectResult.UNKNOWN: "the name is unknown here",
    ConnectResult.STRANGER: "what listens there does not know the token",
    ConnectResult.FAILED: "the connection failed",
    ConnectResult.NOT_TRIED: "not tried",
}


def classify(error: Exception) -> ConnectResult:
    if isinstance(error, Refused):
        return ConnectResult.STRANGER
    if isinstance(error, socket.gaierror | UnicodeError):
        return ConnectResult.UNKNOWN
    if isinstance(error, TimeoutError) and error.errno is None:
        return ConnectResult.SILENT
    return _BY_NUMBER.get(getattr(error, "errno", None) or 0, ConnectResult.FAILED)


def try_host(host: str, port: int) -> ConnectResult:
    """Open a connection without sending anything, and return the result."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except (OSError, UnicodeError) as error:
        return classify(error)
    return ConnectResult.REACHED


def explain_absence(reach: ConnectResult, name: str, port: int) -> tuple[str, str]:
    """Return why a host may be absent, from an attempt to connect to it, and what to do."""
    match reach:
        case ConnectResult.REFUSED:
            text = f"it is up and can be reached, but nothing listens at port {port} there"
            cure = f"start the same command on {name}; if it runs, see what it prints: UNDERTOW_TOKEN may differ there"
        case ConnectResult.REACHED | ConnectResult.STRANGER:
            text = f"something listens at port {port} there"
            cure = f"see what {name} prints; it may have another token, or other --hosts"
        case ConnectResult.SILENT:
            text = f"{DESCRIPTIONS[reach]}: it is down, or a firewall drops packets"
            cure = f"see whether {name} is up; if it is, open its firewall for this host"
        case ConnectResult.UNKNOWN:
            text, cure = DESCRIPTIONS[reach], f"correct the name, add {name} to /etc/hosts, or give its IP address"
        case ConnectResult.NO_ROUTE:
            text, cure = DESCRIPTIONS[reach], f"see whether {name} is up and in this network (ip route get {name})"
        case ConnectResult.FORBIDDEN:
            text, cure = DESCRIPTIONS[reach], "see its firewall and routes (nft list ruleset, ip route)"
        case _:
            text, cure = DESCRIPTIONS[reach], f"see whether {name} is up, and its firewall"
    return text, cure
