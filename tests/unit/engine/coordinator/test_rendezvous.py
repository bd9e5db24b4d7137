"""Rendezvous over real sockets: all ranks meet, and strangers do not disturb them."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pytest

from undertow.engine.coordinator import rendezvous, rendezvous_server
from undertow.engine.coordinator.rendezvous import RendezvousServer, attend, parse_address
from undertow.engine.coordinator.rendezvous_table import MAX_PAYLOAD_BYTES
from undertow.engine.wire import strangers, streams
from undertow.engine.wire.auth import MAGIC, Role, shake_hands
from undertow.engine.wire.listeners import format_address
from undertow.errors import ConfigError, MismatchError, PeerLost, Refused

TOKEN = b"secret"
LONG_S = 30.0  # a hang guard: nothing that succeeds takes this long


def _with_length(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


@pytest.fixture
def point() -> Iterator[RendezvousServer]:
    point = RendezvousServer("127.0.0.1", 0, TOKEN)
    point.start()
    yield point
    point.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as pool:
        yield pool


def come(
    pool: ThreadPoolExecutor, address: str, rank: int, *, size: int, name: str = "m", timeout_s: float = LONG_S
) -> Future[list[bytes]]:
    payload = f"from {rank}".encode()
    return pool.submit(attend, address, TOKEN, name=name, rank=rank, size=size, payload=payload, timeout_s=timeout_s)


def payloads(size: int) -> list[bytes]:
    return [f"from {rank}".encode() for rank in range(size)]


def connect(point: RendezvousServer) -> socket.socket:
    return socket.create_connection(parse_address(point.address), timeout=LONG_S)


def is_turned_away(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_all_ranks_leave_with_everything(point: RendezvousServer, pool: ThreadPoolExecutor) -> None:
    futures = [come(pool, point.address, rank, size=40) for rank in reversed(range(40))]
    assert all(future.result() == payloads(40) for future in futures)


def test_several_rendezvous_at_once_and_one_after_another(point: RendezvousServer, pool: ThreadPoolExecutor) -> None:
    for name in ("a", "b", "a"):
        other = [come(pool, point.address, rank, size=3, name="x" + name) for rank in range(3)]
        futures = [come(pool, point.address, rank, size=2, name=name) for rank in range(2)]
        assert [future.result() for future in futures] == [payloads(2)] * 2
        assert [future.result() for future in other] == [payloads(3)] * 3


def test_participants_may_come_before_the_server(pool: ThreadPoolExecutor) -> None:
    first = RendezvousServer("127.0.0.1", 0, TOKEN)
    host, port = parse_address(first.address)
    first.close()
    futures = [come(pool, first.address, rank, size=2) for rank in range(2)]
    point = RendezvousServer(host, port, TOKEN)
    point.start()
    assert [future.result() for future in futures] == [payloads(2)] * 2
    point.close()


def test_a_large_payload_arrives(point: RendezvousServer, pool: ThreadPoolExecutor) -> None:
    large = bytes(range(256)) * (MAX_PAYLOAD_BYTES // 256)
    futures = [
        pool.submit(attend, point.address, TOKEN, name="m", rank=r, size=4, payload=large, timeout_s=LONG_S)
        for r in range(4)
    ]
    assert all(future.result() == [large] * 4 for future in futures)


def test_too_large_a_payload_is_refused_before_it_is_sent(point: RendezvousServer) -> None:
    with pytest.raises(ConfigError, match="too long"):
        attend(point.address, TOKEN, name="m", rank=0, size=1, payload=bytes(MAX_PAYLOAD_BYTES + 1), timeout_s=1)


def seat(point: RendezvousServer, rank: int, *, size: int) -> socket.socket:
    """A participant who waits for long; it is there when this returns."""
    sock = connect(point)
    shake_hands(sock, Role.DIALER, TOKEN)
    sock.sendall(streams.pack(rendezvous.Join("m", rank, size, b"old", LONG_S, LONG_S)))
    with pytest.raises(ConfigError):  # the seat is taken
        attend(point.address, TOKEN, name="m", rank=rank, size=size, payload=b"", timeout_s=LONG_S)
    return sock


def test_timeout_names_who_came_and_who_did_not(point: RendezvousServer) -> None:
    words = r"ranks 2 and 3 of 4 did not arrive within 0.5 s \(ranks 0 and 1 did\)"
    with seat(point, 0, size=4), pytest.raises(PeerLost, match=words):
        attend(point.address, TOKEN, name="m", rank=1, size=4, payload=b"", timeout_s=0.5)


def test_a_missing_server_is_said_with_its_address() -> None:
    point = RendezvousServer("127.0.0.1", 0, TOKEN)
    point.close()
    with pytest.raises(PeerLost, match=f"at {point.address} within 0.2 s: Connection refused"):
        attend(point.address, TOKEN, name="m", rank=0, size=2, payload=b"", timeout_s=0.2)


def test_a_silent_server_does_not_hang_the_participant() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(PeerLost, match=f"at {address} within 0.2 s"):
            attend(address, TOKEN, name="m", rank=0, size=2, payload=b"", timeout_s=0.2)


def test_the_second_to_claim_a_rank_is_refused(point: RendezvousServer, pool: ThreadPoolExecutor) -> None:
    first, second = (come(pool, point.address, 0, size=2) for _ in range(2))
    refused = wait_for_first(first, second)
    with pytest.raises(ConfigError, match="rank 0 of 2 is taken"):
        refused.result()
    patient = second if refused is first else first
    assert come(pool, point.address, 1, size=2).result() == payloads(2)
    assert patient.result() == payloads(2)


def wait_for_first(*futures: Future[list[bytes]]) -> Future[list[bytes]]:
    done = threading.Event()
    for future in futures:
        future.add_done_callback(lambda _: done.set())
    assert done.wait(LONG_S)
    return next(future for future in futures if future.done())


def test_another_size_is_a_mismatch(point: RendezvousServer) -> None:
    with seat(point, 0, size=2), pytest.raises(MismatchError, match="start all with the same number"):
        attend(point.address, TOKEN, name="m", rank=1, size=3, payload=b"", timeout_s=LONG_S)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_an_impossible_place_is_refused_at_once(rank: int, size: int) -> None:
    with pytest.raises(ConfigError, match=f"rank {rank} of {size}"):
        attend("127.0.0.1:1", TOKEN, name="m", rank=rank, size=size, payload=b"", timeout_s=LONG_S)


@pytest.mark.parametrize("address", ["nowhere", ":80", "host:", "host:0", "host:99999", "host:x"])
def test_a_bad_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        parse_address(address)


def test_addresses_of_both_kinds_are_understood() -> None:
    assert parse_address("10.0.0.1:80") == ("10.0.0.1", 80)
    assert parse_address(format_address("::1", 80)) == ("::1", 80)


def test_a_wrong_token_is_refused_at_once_and_counted(point: RendezvousServer) -> None:
    with pytest.raises(Refused, match="wrong token"):
        attend(point.address, b"wrong", name="m", rank=0, size=1, payload=b"", timeout_s=LONG_S)


def test_who_disconnects_is_no_longer_present(point: RendezvousServer) -> None:
    seat(point, 1, size=3).close()
    with seat(point, 0, size=3), pytest.raises(PeerLost, match="rank 1 of 3 did not arrive"):
        attend(point.address, TOKEN, name="m", rank=2, size=3, payload=b"", timeout_s=0.5)


def test_a_flood_of_silent_strangers_blocks_nobody(
    monkeypatch: pytest.MonkeyPatch, point: RendezvousServer, pool: ThreadPoolExecutor
) -> None:
    monkeypatch.setattr(strangers, "STRANGER_TIMEOUT_S", 10 * LONG_S)  # so that only their number counts
    crowd = [connect(point) for _ in range(rendezvous_server.MAX_STRANGERS + 50)]
    futures = [come(pool, point.address, rank, size=4) for rank in range(4)]
    assert [future.result() for future in futures] == [payloads(4)] * 4
    assert all(is_turned_away(stranger) for stranger in crowd[:50])
    assert point.refused >= 50
    for stranger in crowd:
        stranger.close()


def test_a_silent_stranger_is_turned_away_in_time(monkeypatch: pytest.MonkeyPatch, point: RendezvousServer) -> None:
    monkeypatch.setattr(strangers, "STRANGER_TIMEOUT_S", 0.1)
    with connect(point) as stranger:
        assert is_turned_away(stranger)


@pytest.mark.parametrize(
    "bad",
    [
        (0).to_bytes(4, "little"),
        (rendezvous_server.MAX_REQUEST_BYTES + 1).to_bytes(4, "little"),
        b"\xff\xff\xff\xff",
        (3).to_bytes(4, "little") + b"\xc1\xc1\xc1",
        streams.pack(rendezvous.Join("m", 0, 1 << 30, b"", 1.0, 1.0)),
        streams.pack(rendezvous.Join("m", 0, 2, b"", 1.0, 1.0)) + b"\x05\x00\x00\x00",
        streams.pack(rendezvous.Join("m?", 0, 2, b"", 1.0, 1.0)).replace(b"m?", b"m\xff"),
        _with_length(b"\x97" + msgspec.msgpack.encode(("m", 0, 2, b"", 1.0, 1.0))[1:] + b"\x91" * 100_000),
        streams.pack(rendezvous.Join("m", -5, 2, b"", 1.0, 1.0)),
        streams.pack(rendezvous.Join("m", 0, 2, b"", math.nan, 1.0)),
        streams.pack(rendezvous.Join("m", 0, 2, b"", 1.0, math.inf)),
    ],
    ids=[
        "empty",
        "oversized",
        "huge",
        "not msgpack",
        "impossible size",
        "talks on",
        "not UTF-8",
        "nested",
        "impossible rank",
        "no timeout",
        "endless timeout",
    ],
)
def test_a_friend_who_talks_nonsense_is_dropped(point: RendezvousServer, pool: ThreadPoolExecutor, bad: bytes) -> None:
    with connect(point) as friend:
        shake_hands(friend, Role.DIALER, TOKEN)
        friend.sendall(bad)
        assert is_turned_away(friend)
    assert [come(pool, point.address, 0, size=1).result()] == [payloads(1)]
    assert point.refused == 1


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", MAGIC + b"\x09\x00" + bytes(16)])
def test_a_stranger_who_talks_garbage_is_turned_away_and_logged_once(
    point: RendezvousServer, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with connect(point) as stranger:
            stranger.sendall(garbage)
            assert is_turned_away(stranger)
    assert point.refused == 3
    assert len(caplog.records) == 1


def test_a_participant_may_wait_for_longer_than_the_system_can_sleep(
    point: RendezvousServer, pool: ThreadPoolExecutor
) -> None:
    with connect(point) as patient:
        shake_hands(patient, Role.DIALER, TOKEN)
        patient.sendall(streams.pack(rendezvous.Join("years", 0, 2, b"", 1e9, 1e9)))
        assert [come(pool, point.address, 0, size=1).result()] == [payloads(1)]


@pytest.mark.parametrize(
    "address", ["10.0.0.1:" + "1" * 5000, "a" * 64 + ":29500", "a\0b:29500", "10.0.0.1:٣", "host:0", ":1"]
)
def test_an_address_that_no_host_can_have_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        rendezvous.parse_address(address)


@pytest.mark.parametrize(
    "answer", [msgspec.msgpack.encode(([], None, "")), b"\x93\x91\xc4\x00\xc0\xa1\xff", b"\x91" * 100_000]
)
def test_an_answer_without_all_payloads_is_refused(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(len(answer).to_bytes(4, "little") + answer)
        with pytest.raises(Refused, match="the rendezvous server's answer is not valid"):
            rendezvous._read_reply(ours, 1)


def test_a_nonsensical_answer_is_refused() -> None:
    def serve(server: socket.socket) -> None:
        guest, _ = server.accept()
        with guest:
            shake_hands(guest, Role.LISTENER, TOKEN)
            guest.sendall(b"\x02\x00\x00\x00" + msgspec.msgpack.encode(7) * 2)
            guest.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Refused, match="is not valid"):
            attend(address, TOKEN, name="m", rank=0, size=1, payload=b"", timeout_s=LONG_S)
        thread.join()


def test_a_port_in_use_is_said_with_its_number(point: RendezvousServer) -> None:
    host, port = parse_address(point.address)
    with pytest.raises(ConfigError, match=f"cannot listen on {host}:{port}: Address already in use"):
        RendezvousServer(host, port, TOKEN)


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0"):
        RendezvousServer("192.0.2.1", 0, TOKEN)


def test_it_listens_on_its_own_interface_only(point: RendezvousServer) -> None:
    _, port = parse_address(point.address)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=LONG_S)


def test_closing_delivers_the_replies_first(pool: ThreadPoolExecutor) -> None:
    point = RendezvousServer("127.0.0.1", 0, TOKEN)
    point.start()
    slow = connect(point)
    shake_hands(slow, Role.DIALER, TOKEN)
    large = bytes(MAX_PAYLOAD_BYTES)  # times 12: no socket buffer holds the whole reply
    slow.sendall(streams.pack(rendezvous.Join("m", 0, 12, large, LONG_S, LONG_S)))
    options = {"name": "m", "size": 12, "payload": large, "timeout_s": LONG_S}
    others = [pool.submit(attend, point.address, TOKEN, rank=rank, **options) for rank in range(1, 12)]
    others[0].result()
    closing = pool.submit(point.close)
    with slow, slow.makefile("rb") as stream:
        length = int.from_bytes(stream.read(4), "little")
        assert len(stream.read(length)) == length > 12 * len(large)
    closing.result()
    assert [future.result() for future in others] == [[large] * 12] * 11


def test_its_port_is_free_after_closing(point: RendezvousServer, pool: ThreadPoolExecutor) -> None:
    host, port = parse_address(point.address)
    for future in [come(pool, point.address, rank, size=2) for rank in range(2)]:
        future.result()
    point.close()
    again = RendezvousServer(host, port, TOKEN)
    again.close()
