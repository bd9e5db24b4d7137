"""The door and who measures at it, over real sockets on loopback: strangers are refused, nothing hangs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from undertow.coordinator.rendezvous import MeetingPoint, attend, parse_address
from undertow.doctor import bulk
from undertow.doctor.bulk import Received, pump, receive
from undertow.doctor.cards import Card, Circle
from undertow.doctor.door import Door
from undertow.doctor.letters import LENGTH, Echo, Take, read_letter, send_letter
from undertow.doctor.measuring import Measured, measure, try_door
from undertow.doctor.pairs import survey
from undertow.doctor.patience import run_all, run_one
from undertow.doctor.reach import Reach
from undertow.errors import Refused
from undertow.watch import NOBODY
from undertow.wire.auth import Role, shake_hands
from undertow.wire.strangers import MAX_STRANGERS

TOKEN = b"secret"


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door("127.0.0.1")
    door.serve(TOKEN)
    yield door
    door.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        for sock in (one, other):
            sock.settimeout(10)  # a hang guard
        yield one, other


def come_in(door: Door, token: bytes = TOKEN) -> socket.socket:
    sock = socket.create_connection(parse_address(door.address), timeout=10)
    shake_hands(sock, Role.DIALER, token)
    return sock


def test_a_way_is_measured_both_ways(door: Door) -> None:
    found = measure((1, 0), door.address, TOKEN, duration_s=0.05)
    assert (found.dialer, found.listener, found.error) == (1, 0, "")
    assert 0 < found.least_s <= found.median_s
    assert abs(found.offset_s) < 1  # the same clock
    assert found.rate_bytes_per_s(0) > 0
    assert found.rate_bytes_per_s(1) > 0
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Measured) == found


def test_what_a_door_says_to_those_who_try_it(door: Door) -> None:
    assert try_door(door.address, TOKEN) is Reach.REACHED
    assert try_door(door.address, b"wrong") is Reach.STRANGER
    door.close()
    assert try_door(door.address, TOKEN) is Reach.REFUSED


def test_strangers_who_say_nothing_keep_no_doctor_out(door: Door) -> None:
    strangers = [socket.create_connection(parse_address(door.address), timeout=10) for _ in range(2 * MAX_STRANGERS)]
    assert try_door(door.address, TOKEN) is Reach.REACHED
    assert measure((1, 0), door.address, TOKEN, duration_s=0.02).error == ""
    while strangers[0].recv(64):
        pass  # the listener's part of the handshake; then the end: it has made room
    for stranger in strangers:
        stranger.close()


def test_nonsense_after_the_handshake_ends_that_guest_only(door: Door) -> None:
    for letter in (LENGTH.pack(1 << 30), LENGTH.pack(0), LENGTH.pack(3) + b"abc"):
        with come_in(door) as sock:
            sock.sendall(letter)
            assert sock.recv(1) == b""
    with come_in(door) as sock:
        send_letter(sock, Echo(1_000_000))  # more than anybody may ask for
        assert sock.recv(1) == b""
    assert try_door(door.address, TOKEN) is Reach.REACHED


def test_a_letter_that_is_too_long_is_refused_unread(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    one.sendall(LENGTH.pack(1 << 20))
    with pytest.raises(Refused, match="1048576 bytes"):
        read_letter(other, msgspec.msgpack.Decoder(Take))


def test_bulk_that_does_not_come_is_a_stall(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STALL_S", 0.05)
    one, other = pair
    assert receive(other, 0.1) == Received(0, 0.0, is_stalled=True)
    one.sendall(b"x" * 1000)
    assert receive(other, 0.1).is_stalled  # a beginning, and then no more


def test_a_pump_stops_when_the_other_end_speaks_or_its_time_is_over(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    other.sendall(b"enough")
    pump(one, 60.0)
    assert one.recv(6) == b"enough"
    monkeypatch.setattr(bulk, "STALL_S", 0.01)
    pump(one, 0.01)  # nobody reads


def card(name: str, door: str) -> Card:
    return Card(name=name, door=door, mark=name, protocol=1, versions={})


def test_all_hosts_come_to_the_same_survey() -> None:
    doors = [Door("127.0.0.1") for _ in range(3)]
    for door in doors[:2]:
        door.serve(TOKEN)
    doors[2].close()  # as behind a firewall
    cards = [card(name, door.address) for name, door in zip("abc", doors, strict=True)]
    point = MeetingPoint("127.0.0.1", 0, b"")
    point.start()

    def take_part(rank: int) -> object:
        def exchange(meeting: str, payload: bytes, timeout_s: float) -> list[bytes]:
            place = {"rank": rank, "size": 3}
            return attend(point.address, b"", meeting=meeting, **place, payload=payload, timeout_s=timeout_s)

        return survey(Circle(rank, cards, TOKEN, exchange), duration_s=0.02, watch=NOBODY)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(take_part, range(3)))
    point.close()
    for door in doors:
        door.close()
    assert found[0] == found[1] == found[2]
    assert found[0].reach == [  # type: ignore[attr-defined]
        [Reach.REACHED, Reach.REACHED, Reach.REFUSED],
        [Reach.REACHED, Reach.REACHED, Reach.REFUSED],
        [Reach.REACHED, Reach.REACHED, Reach.REACHED],
    ]
    pairs = sorted((one.dialer, one.listener) for one in found[0].measured)  # type: ignore[attr-defined]
    assert pairs == [(1, 0), (2, 0), (2, 1)]


def test_errands_run_side_by_side_and_their_errors_come_home() -> None:
    barrier = threading.Barrier(3)

    def work(number: int) -> int:
        barrier.wait(10)  # or none of them would come through
        return 1 // number

    results = {errand.number: errand for errand in run_all(work, [0, 1, 2])}
    assert (results[1].result(), results[2].result()) == (1, 0)
    with pytest.raises(ZeroDivisionError):
        results[0].result()
    assert run_one(lambda: 7) == 7
