"""The promises of every transport, checked for each of them, including the one in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.support.wires import JOB, MemoryWires, SocketWires, Wires, send
from undertow.engine.core.frames import HEADER_BYTES, Body, Header, Kind, pack
from undertow.engine.wire.transport import Transport
from undertow.settings import Checksum

MakeWires = Callable[[int], Wires]


@pytest.fixture(params=["memory", "tcp", "unix"])
def wires_of(request: pytest.FixtureRequest) -> Iterator[MakeWires]:
    made: list[Wires] = []

    def make(size: int) -> Wires:
        if request.param == "memory":
            made.append(MemoryWires(size))
        else:
            made.append(SocketWires(size, local=request.param == "unix").connect())
        return made[-1]

    yield make
    for wires in made:
        wires.close()


def test_it_is_a_transport(wires_of: MakeWires) -> None:
    transport: Transport = wires_of(2).transports[0]
    assert transport.bytes_sent == 0


def test_every_pair_is_connected_and_notified_once(wires_of: MakeWires) -> None:
    wires = wires_of(3)
    for rank in range(3):
        others = [peer for peer in range(3) if peer != rank]
        assert sorted(wires.recorders[rank].connections) == others
        assert [wires.transports[rank].is_connected(peer) for peer in others] == [True, True]
        assert not wires.transports[rank].is_connected(rank)
        assert not wires.transports[rank].is_connected(99)


def test_frames_of_one_peer_arrive_once_and_in_order(wires_of: MakeWires) -> None:
    wires = wires_of(3)
    for key in range(50):
        for sender in (1, 2):
            send(wires, sender, 0, key, bytes([key]) * (key % 7) or None)
    wires.until(lambda: len(wires.recorders[0].frames) == 100)
    for sender in (1, 2):
        heard = [(key, body) for peer, key, body in wires.recorders[0].frames if peer == sender]
        assert heard == [(key, bytes([key]) * (key % 7) or None) for key in range(50)]
    assert wires.recorders[1].frames == wires.recorders[2].frames == []


def test_both_directions_work_at_once(wires_of: MakeWires) -> None:
    wires = wires_of(2)
    for key in range(20):
        send(wires, 0, 1, key, b"to 1")
        send(wires, 1, 0, key, b"to 0")
    wires.until(lambda: all(len(recorder.frames) == 20 for recorder in wires.recorders))
    assert wires.recorders[0].frames == [(1, key, b"to 0") for key in range(20)]
    assert wires.recorders[1].frames == [(0, key, b"to 1") for key in range(20)]


def test_large_bodies_arrive_intact(wires_of: MakeWires) -> None:
    wires = wires_of(2)
    bodies = [np.random.default_rng(seed).integers(0, 256, 3_000_001, dtype=np.uint8) for seed in range(3)]
    for key, body in enumerate(bodies):
        send(wires, 0, 1, key, body)
    wires.until(lambda: len(wires.recorders[1].frames) == 3)
    assert [body for _, _, body in wires.recorders[1].frames] == [body.tobytes() for body in bodies]


def test_a_body_of_any_type_is_sent_as_its_bytes(wires_of: MakeWires) -> None:
    wires = wires_of(2)
    array = np.arange(12, dtype=np.float64)
    send(wires, 0, 1, 1, array)
    wires.until(lambda: len(wires.recorders[1].frames) == 1)
    assert wires.recorders[1].frames == [(0, 1, array.tobytes())]


def test_an_empty_body_is_no_body(wires_of: MakeWires) -> None:
    wires = wires_of(2)
    send(wires, 0, 1, 1, b"")
    send(wires, 0, 1, 2, np.empty(0, np.uint8))
    send(wires, 0, 1, 3, b"next")
    wires.until(lambda: len(wires.recorders[1].frames) == 3)
    assert wires.recorders[1].frames == [(0, 1, None), (0, 2, None), (0, 3, b"next")]


@pytest.mark.parametrize("size", [1, 1000, 2_000_000])
def test_a_dropped_body_does_not_disturb_the_next_frame(wires_of: MakeWires, size: int) -> None:
    wires = wires_of(2)
    wires.recorders[1].unwanted = {1}
    for _ in range(3):
        send(wires, 0, 1, 1, bytes(size))
        send(wires, 0, 1, 2, b"wanted")
    wires.until(lambda: len(wires.recorders[1].frames) == 3)
    assert wires.recorders[1].frames == [(0, 2, b"wanted")] * 3
    assert wires.recorders[1].losses == []


def test_bytes_are_counted_with_their_headers(wires_of: MakeWires) -> None:
    wires = wires_of(2)
    send(wires, 0, 1, 1, bytes(1000))
    send(wires, 0, 1, 2)
    wires.until(lambda: len(wires.recorders[1].frames) == 2)
    assert wires.transports[0].bytes_sent == 1000 + 2 * HEADER_BYTES
    assert wires.transports[1].bytes_sent == 0


def test_to_send_to_nobody_does_nothing(wires_of: MakeWires) -> None:
    wires = wires_of(2)
    send(wires, 0, 99, 1, b"hello")
    assert wires.transports[0].bytes_sent == 0


def test_who_closes_is_lost_to_the_others_once_and_after_its_frames(wires_of: MakeWires) -> None:
    wires = wires_of(3)
    send(wires, 1, 0, 5, b"last words")
    wires.until(lambda: bool(wires.recorders[0].frames))
    wires.run(wires.transports[1].close)
    wires.run(wires.transports[1].close)
    wires.until(lambda: all(wires.recorders[rank].losses for rank in (0, 2)))
    for rank in (0, 2):
        assert wires.recorders[rank].losses == [(1, "its connection closed (the process ended)")]
        assert not wires.transports[rank].is_connected(1)
    assert wires.recorders[0].frames == [(1, 5, b"last words")]
    assert wires.recorders[1].losses == []
    assert not wires.transports[1].is_connected(0)


def test_the_loss_of_one_peer_leaves_the_others_alone(wires_of: MakeWires) -> None:
    wires = wires_of(3)
    wires.run(wires.transports[1].close)
    wires.until(lambda: all(wires.recorders[rank].losses for rank in (0, 2)))
    send(wires, 0, 1, 1, b"into the void")
    send(wires, 0, 2, 2, b"still here")
    wires.until(lambda: bool(wires.recorders[2].frames))
    assert wires.recorders[2].frames == [(0, 2, b"still here")]
    assert len(wires.recorders[0].losses) == 1


def test_bytes_that_are_no_frame_end_the_link_with_a_reason(wires_of: MakeWires) -> None:
    wires = wires_of(2)
    wires.run(lambda: wires.transports[0].send(1, b"this is not a header".ljust(HEADER_BYTES)))
    wires.until(lambda: all(recorder.losses for recorder in wires.recorders))
    [(peer, reason)] = wires.recorders[1].losses
    assert peer == 0
    assert reason.startswith("bytes from it were damaged on the way (a frame starts with b'this'")
    assert [peer for peer, _ in wires.recorders[0].losses] == [1]


@pytest.mark.parametrize("size", [1, 1000, 100_000, 5_000_000])
def test_a_body_that_was_damaged_on_the_way_ends_the_link_with_a_reason(wires_of: MakeWires, size: int) -> None:
    wires = wires_of(2)
    sent = bytes(size)
    header = pack(Header(Kind.PUSH, key=1, length=size, job=JOB), checked_body=Body(sent))
    damaged = bytearray(sent)
    damaged[size // 2] ^= 1
    wires.run(lambda: wires.transports[0].send(1, header, damaged))
    wires.until(lambda: all(recorder.losses for recorder in wires.recorders))
    [(peer, reason)] = wires.recorders[1].losses
    assert peer == 0
    assert reason.startswith(f"bytes from it were damaged on the way (a PUSH frame's body of {size} bytes does not")
    assert wires.recorders[1].frames == []


@pytest.mark.parametrize("at", [0, 30, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 500_000])
def test_the_sender_of_damaged_bytes_gets_the_last_frames_and_then_the_end(wires_of: MakeWires, at: int) -> None:
    """Also behind frames that were on their way to it, while it still sends, and nothing that is said later."""
    wires = wires_of(3)
    body = bytes(1_000_000)
    frame = bytearray(pack(Header(Kind.PUSH, key=1, length=len(body), job=JOB), checked_body=Body(body)) + body)
    frame[at] ^= 1
    told: list[bool] = []

    def tell(peer: int) -> None:
        told.append(wires.transports[1].is_connected(peer))
        wires.transports[1].send(peer, pack(Header(Kind.PUSH, key=9, length=4, job=JOB)), b"why!")

    def send_all() -> None:
        wires.transports[1].send(0, pack(Header(Kind.PUSH, key=8, length=len(body), job=JOB)), body)
        wires.transports[0].send(1, bytes(frame[:HEADER_BYTES]), frame[HEADER_BYTES:])
        for _ in range(5):
            wires.transports[0].send(1, pack(Header(Kind.PUSH, key=2, length=len(body), job=JOB)), body)

    wires.recorders[1].on_lost = tell
    wires.run(send_all)
    wires.until(lambda: bool(wires.recorders[1].losses))
    send(wires, 1, 0, 10, b"too late")
    wires.until(lambda: bool(wires.recorders[0].losses))
    assert wires.recorders[0].frames == [(1, 8, body), (1, 9, b"why!")]
    assert [peer for peer, _ in wires.recorders[0].losses] == [1]
    assert [peer for peer, _ in wires.recorders[1].losses] == [0]
    assert wires.recorders[1].frames == []
    assert told == [True]
    assert [wires.transports[rank].is_connected(1 - rank) for rank in (0, 1)] == [False, False]
    while wires.run(lambda: wires.transports[1].is_draining):
        pass
    send(wires, 1, 2, 3, b"still here")
    wires.until(lambda: bool(wires.recorders[2].frames))


def test_a_receiver_may_close_the_link_when_it_is_notified_of_damage(wires_of: MakeWires) -> None:
    wires = wires_of(2)
    wires.recorders[1].on_lost = lambda peer: wires.transports[1].close()
    wires.run(lambda: wires.transports[0].send(1, b"this is not a header".ljust(HEADER_BYTES)))
    wires.until(lambda: all(recorder.losses for recorder in wires.recorders))
    assert [len(recorder.losses) for recorder in wires.recorders] == [1, 1]
    assert not wires.run(lambda: wires.transports[1].is_draining)


def test_a_body_without_a_checksum_is_taken_as_it_is(wires_of: MakeWires) -> None:
    wires = wires_of(2)
    header = pack(Header(Kind.PUSH, key=1, length=4, job=JOB))
    wires.run(lambda: wires.transports[0].send(1, header, b"body"))
    wires.until(lambda: bool(wires.recorders[1].frames))
    assert wires.recorders[1].frames == [(0, 1, b"body")]


@pytest.mark.parametrize(
    ("checksum", "local", "expected"),
    [
        (Checksum.AUTO, False, True),
        (Checksum.AUTO, True, False),
        (Checksum.ON, True, True),
        (Checksum.OFF, False, False),
    ],
)
def test_bodies_are_checked_between_hosts_by_default(checksum: Checksum, local: bool, expected: bool) -> None:
    wires = SocketWires(2, local=local, checksum=checksum).connect()
    try:
        assert [wires.transports[rank].checks_bodies(1 - rank) for rank in (0, 1)] == [expected] * 2
    finally:
        wires.close()
