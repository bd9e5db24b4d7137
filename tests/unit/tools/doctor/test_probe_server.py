"""The probe server and its clients, over real sockets on loopback: strangers are refused, nothing hangs."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import msgspec
import pytest

from undertow.engine.coordinator.rendezvous import RendezvousServer, attend, parse_address
from undertow.engine.wire.auth import Role, shake_hands
from undertow.engine.wire.strangers import MAX_STRANGERS
from undertow.engine.wire.streams import LENGTH_BYTES, pack
from undertow.errors import Refused
from undertow.progress import SILENT
from undertow.tools.doctor import probe_protocol
from undertow.tools.doctor.link_measurement import ConnectResult, LinkMeasurement, measure, try_connection
from undertow.tools.doctor.pairs import survey
from undertow.tools.doctor.probe_protocol import Echo, Received, Take, pump, read_probe_message, receive
from undertow.tools.doctor.probe_server import ProbeServer
from undertow.tools.doctor.rendezvous import HostCard, HostGroup, run_all, run_one

TOKEN = b"secret"


@pytest.fixture
def server() -> Iterator[ProbeServer]:
    server = ProbeServer("127.0.0.1")
    server.serve(TOKEN)
    yield server
    server.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        for sock in (one, other):
            sock.settimeout(10)  # a hang guard
        yield one, other


def connect(server: ProbeServer, token: bytes = TOKEN) -> socket.socket:
    sock = socket.create_connection(parse_address(server.address), timeout=10)
    shake_hands(sock, Role.DIALER, token)
    return sock


def test_a_link_is_measured_in_both_directions(server: ProbeServer) -> None:
    found = measure((1, 0), server.address, TOKEN, duration_s=0.05)
    assert (found.dialer, found.listener, found.error) == (1, 0, "")
    assert 0 < found.least_s <= found.median_s
    assert abs(found.offset_s) < 1  # the same clock
    assert found.rate_bytes_per_s(0) > 0
    assert found.rate_bytes_per_s(1) > 0
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=LinkMeasurement) == found


def test_what_an_attempt_to_connect_finds(server: ProbeServer) -> None:
    assert try_connection(server.address, TOKEN) is ConnectResult.REACHED
    assert try_connection(server.address, b"wrong") is ConnectResult.STRANGER
    server.close()
    assert try_connection(server.address, TOKEN) is ConnectResult.REFUSED


def test_silent_strangers_keep_no_doctor_out(server: ProbeServer) -> None:
    strangers = [socket.create_connection(parse_address(server.address), timeout=10) for _ in range(2 * MAX_STRANGERS)]
    assert try_connection(server.address, TOKEN) is ConnectResult.REACHED
    assert measure((1, 0), server.address, TOKEN, duration_s=0.02).error == ""
    while strangers[0].recv(64):
        pass  # the listener's half of the handshake, then the end: the oldest stranger was closed
    for stranger in strangers:
        stranger.close()


def make_length(length: int) -> bytes:
    return length.to_bytes(LENGTH_BYTES, "little")


def test_nonsense_after_the_handshake_ends_that_connection_only(server: ProbeServer) -> None:
    for message in (make_length(1 << 30), make_length(0), make_length(3) + b"abc"):
        with connect(server) as sock:
            sock.sendall(message)
            assert sock.recv(1) == b""
    with connect(server) as sock:
        sock.sendall(pack(Echo(1_000_000)))  # more than is allowed
        assert sock.recv(1) == b""
    assert try_connection(server.address, TOKEN) is ConnectResult.REACHED


def test_a_message_that_is_too_long_is_refused_unread(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    one.sendall(make_length(1 << 20))
    with pytest.raises(Refused, match="1048576 bytes"):
        read_probe_message(other, msgspec.msgpack.Decoder(Take))


def test_bulk_that_does_not_come_is_a_stall(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_protocol, "STALL_S", 0.05)
    one, other = pair
    assert receive(other, 0.1) == Received(0, 0.0, is_stalled=True)
    one.sendall(b"x" * 1000)
    assert receive(other, 0.1).is_stalled  # data begins to arrive, and then stops


def test_a_busy_host_reads_at_least_once_before_it_judges(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread may be descheduled for longer than the measurement lasts."""
    monkeypatch.setattr(probe_protocol, "STALL_S", 0.05)
    monkeypatch.setattr(probe_protocol, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(probe_protocol, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    one, other = pair
    one.sendall(b"x" * 1000)
    assert receive(other, 0.1).is_stalled
    one.sendall(b"x" * 3000)
    found = receive(other, 0.1)
    assert (found.size_bytes, found.is_stalled) == (1000, False)


def test_a_pump_stops_when_the_other_end_answers_or_its_time_is_over(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    other.sendall(b"enough")
    pump(one, 60.0)
    assert one.recv(6) == b"enough"
    monkeypatch.setattr(probe_protocol, "STALL_S", 0.01)
    pump(one, 0.01)  # the other end does not read


def card(name: str, address: str) -> HostCard:
    return HostCard(name=name, probe_address=address, mark=name, protocol=1, versions={})


def test_all_hosts_come_to_the_same_survey() -> None:
    servers = [ProbeServer("127.0.0.1") for _ in range(3)]
    for server in servers[:2]:
        server.serve(TOKEN)
    servers[2].close()  # as behind a firewall
    cards = [card(name, server.address) for name, server in zip("abc", servers, strict=True)]
    point = RendezvousServer("127.0.0.1", 0, b"")
    point.start()

    def take_part(rank: int) -> object:
        def exchange(meeting: str, payload: bytes, timeout_s: float) -> list[bytes]:
            numbers = {"rank": rank, "size": 3}
            return attend(point.address, b"", name=meeting, **numbers, payload=payload, timeout_s=timeout_s)

        return survey(HostGroup(rank, cards, TOKEN, exchange), duration_s=0.02, progress=SILENT)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(take_part, range(3)))
    point.close()
    for server in servers:
        server.close()
    assert found[0] == found[1] == found[2]
    assert found[0].reach == [  # type: ignore[attr-defined]
        [ConnectResult.REACHED, ConnectResult.REACHED, ConnectResult.REFUSED],
        [ConnectResult.REACHED, ConnectResult.REACHED, ConnectResult.REFUSED],
        [ConnectResult.REACHED, ConnectResult.REACHED, ConnectResult.REACHED],
    ]
    pairs = sorted((one.dialer, one.listener) for one in found[0].measured)  # type: ignore[attr-defined]
    assert pairs == [(1, 0), (2, 0), (2, 1)]


def test_calls_run_at_the_same_time_and_raise_their_errors() -> None:
    barrier = threading.Barrier(3)

    def work(number: int) -> int:
        barrier.wait(10)  # without which none of them would return
        return 1 // number

    results = dict(run_all(work, [0, 1, 2]))
    assert (results[1].result(), results[2].result()) == (1, 0)
    with pytest.raises(ZeroDivisionError):
        results[0].result()
    assert run_one(lambda: 7) == 7
