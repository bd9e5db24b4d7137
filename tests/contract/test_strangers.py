"""Connections that do not belong to the job are refused and counted; the traffic of peers continues."""

from __future__ import annotations

import logging
import queue
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.wires import HANG_S, HOST, JOB, TOKEN, SocketWires, send
from undertow.engine.core.frames import MAGIC, VERSION
from undertow.engine.wire.auth import Role, shake_hands
from undertow.engine.wire.listeners import open_listener
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.sockets import INTRODUCTION, SocketTransport
from undertow.engine.wire.strangers import MAX_STRANGERS, STRANGER_TIMEOUT_S, Stranger, Strangers

NOT_EXPECTED = "it knows the token but is not expected in this group"


@pytest.fixture
def wires() -> Iterator[SocketWires]:
    made = SocketWires(3).connect()
    yield made
    made.close()


def call(wires: SocketWires, rank: int = 0) -> socket.socket:
    """A connection to this rank from somebody."""
    host, port = wires.transports[rank].address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=HANG_S)


def hears_the_end(sock: socket.socket) -> bool:
    """Whether the other end hangs up; what it says before does not matter."""
    try:
        while sock.recv(1000):
            pass
    except ConnectionResetError:
        pass
    return True


def refusals(wires: SocketWires, rank: int = 0) -> dict[str, int]:
    """Asked in the engine thread: after the end of a connection its refusal is counted there."""
    return dict(wires.run(lambda: wires.transports[rank].refused))


def check_traffic_goes_on(wires: SocketWires) -> None:
    before = len(wires.recorders[0].frames)
    for sender in (1, 2):
        send(wires, sender, 0, sender, b"business as usual")
    wires.until(lambda: len(wires.recorders[0].frames) == before + 2)
    assert all(recorder.losses == [] for recorder in wires.recorders)
    assert [len(recorder.connections) for recorder in wires.recorders] == [2, 2, 2]


def turn_until(wires: SocketWires, condition: Callable[[], bool]) -> None:
    """Let the engine thread turn, one turn at a time, until it has seen something."""
    while not wires.run(condition):
        pass


@pytest.mark.parametrize(
    ("first_words", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not an undertow peer: its first bytes are not ours"),
        (b"\0" * 1000, "not an undertow peer: its first bytes are not ours"),
        (
            MAGIC + (VERSION + 1).to_bytes(2, "little") + bytes(16),
            f"the peer does not speak version {VERSION}: install the same undertow on all hosts",
        ),
        (
            MAGIC + VERSION.to_bytes(2, "little") + bytes(16) + bytes(32),
            "wrong token: the peer does not belong to this job",
        ),
    ],
    ids=["http", "zeros", "version", "proof"],
)
def test_a_stranger_is_refused_with_a_reason(wires: SocketWires, first_words: bytes, reason: str) -> None:
    with call(wires) as stranger:
        stranger.sendall(first_words)
        assert hears_the_end(stranger)
    assert refusals(wires) == {reason: 1}
    check_traffic_goes_on(wires)


def test_a_wrong_token_is_refused_at_both_ends(wires: SocketWires) -> None:
    with call(wires) as stranger, pytest.raises(Exception, match="wrong token"):
        shake_hands(stranger, Role.DIALER, b"another job's token")
    turn_until(wires, lambda: bool(wires.transports[0].refused))
    assert refusals(wires) == {"it closed the connection during the handshake": 1}
    check_traffic_goes_on(wires)


@pytest.mark.parametrize(
    ("job", "rank"),
    [(JOB + 1, 1), (JOB, 0), (JOB, 1), (JOB, 2), (JOB, 3), (JOB, 2**32 - 1)],
    ids=["another job", "the listener's own rank", "a taken rank", "another taken rank", "no such rank", "far off"],
)
def test_the_token_alone_gives_no_place(wires: SocketWires, job: int, rank: int) -> None:
    with call(wires) as stranger:
        shake_hands(stranger, Role.DIALER, TOKEN)
        stranger.sendall(INTRODUCTION.pack(job, rank))
        assert hears_the_end(stranger)
    assert refusals(wires) == {NOT_EXPECTED: 1}
    check_traffic_goes_on(wires)


def test_a_peer_of_another_job_gets_no_place_even_if_its_rank_is_free() -> None:
    wires = SocketWires(2)
    with call(wires) as stranger:
        shake_hands(stranger, Role.DIALER, TOKEN)
        stranger.sendall(INTRODUCTION.pack(JOB + 1, 1))
        assert hears_the_end(stranger)
    assert refusals(wires) == {NOT_EXPECTED: 1}
    wires.connect()
    wires.close()


def test_a_lower_rank_may_not_dial(wires: SocketWires) -> None:
    with call(wires, rank=2) as stranger:
        shake_hands(stranger, Role.DIALER, TOKEN)
        stranger.sendall(INTRODUCTION.pack(JOB, 1))
        assert hears_the_end(stranger)
    assert refusals(wires, 2) == {NOT_EXPECTED: 1}
    check_traffic_goes_on(wires)


@pytest.mark.parametrize("said", [b"", MAGIC[:2], MAGIC + VERSION.to_bytes(2, "little") + bytes(16)])
def test_a_stranger_that_falls_silent_is_dropped_after_a_while(wires: SocketWires, said: bytes) -> None:
    with call(wires) as stranger:
        stranger.sendall(said)
        check_traffic_goes_on(wires)
        turn_until(wires, lambda: len(wires.transports[0]._strangers) == 1)
        wires.run(lambda: wires.transports[0]._strangers.expire(time.monotonic()))
        assert refusals(wires) == {}
        wires.run(lambda: wires.transports[0]._strangers.expire(time.monotonic() + STRANGER_TIMEOUT_S + 0.1))
        assert hears_the_end(stranger)
    assert refusals(wires) == {"it did not complete the handshake within 5 s": 1}
    check_traffic_goes_on(wires)


def test_a_stranger_that_hangs_up_is_counted(wires: SocketWires) -> None:
    call(wires).close()
    turn_until(wires, lambda: wires.transports[0].refused.total() == 1)
    check_traffic_goes_on(wires)


def test_the_same_refusal_is_logged_once_and_counted_always(
    wires: SocketWires, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "undertow"):
        for _ in range(5):
            with call(wires) as stranger:
                stranger.sendall(b"who are you?")
                assert hears_the_end(stranger)
    assert refusals(wires) == {"not an undertow peer: its first bytes are not ours": 5}
    assert len(caplog.messages) == 1
    assert "refused a connection from 127.0.0.1: not an undertow peer" in caplog.messages[0]


@pytest.fixture
def crowd() -> Iterator[tuple[SocketWires, list[socket.socket]]]:
    """Two workers that are not connected yet, and more silent strangers than the listener admits."""
    wires = SocketWires(2)
    strangers = [call(wires) for _ in range(MAX_STRANGERS + 5)]
    turn_until(wires, lambda: wires.transports[0].refused.total() == 5)
    yield wires, strangers
    for stranger in strangers:
        stranger.close()
    wires.close()


def test_of_too_many_strangers_the_oldest_are_refused(crowd: tuple[SocketWires, list[socket.socket]]) -> None:
    wires, strangers = crowd
    for stranger in strangers[:5]:
        assert hears_the_end(stranger)
    assert refusals(wires) == {"too many connections without a token": 5}


def test_a_crowd_of_silent_strangers_does_not_keep_a_peer_out(crowd: tuple[SocketWires, list[socket.socket]]) -> None:
    wires, _ = crowd
    wires.connect()
    send(wires, 1, 0, 1, b"at once")
    wires.until(lambda: bool(wires.recorders[0].frames))


def test_silent_strangers_are_dropped_after_the_timeout(crowd: tuple[SocketWires, list[socket.socket]]) -> None:
    wires, strangers = crowd
    wires.run(lambda: wires.transports[0]._strangers.expire(time.monotonic() + STRANGER_TIMEOUT_S + 0.1))
    for stranger in strangers:
        assert hears_the_end(stranger)
    assert sum(refusals(wires).values()) == MAX_STRANGERS + 5
    wires.connect()


def test_it_listens_on_the_given_interface_only() -> None:
    wires = SocketWires(1)
    port = wires.transports[0].address.rsplit(":", 1)[1]
    try:
        assert wires.transports[0].address == f"{HOST}:{port}"
        with socket.socket() as other, pytest.raises(ConnectionRefusedError):
            other.connect(("127.0.0.2", int(port)))
    finally:
        wires.close()


def test_the_system_chooses_the_port() -> None:
    wires = SocketWires(4)
    assert len({transport.address for transport in wires.transports}) == 4
    wires.close()


def test_an_address_of_version_6_is_written_with_brackets() -> None:
    loop = Loop()
    try:
        transport = SocketTransport(loop, rank=0, size=1, host="::1", silence_s=1.0)
    except OSError:
        pytest.skip("this host has no ::1")
    assert transport.address.startswith("[::1]:")
    transport.close()
    loop.close()


def test_nothing_listens_any_more_after_close() -> None:
    wires = SocketWires(1)
    host, port = wires.transports[0].address.rsplit(":", 1)
    wires.close()
    with socket.socket() as late, pytest.raises(ConnectionRefusedError):
        late.connect((host, int(port)))


def test_abandoned_copies_are_closed_without_a_word() -> None:
    wires = SocketWires(2).connect()
    copies = wires.transports[0]
    wires.run(lambda: wires.loop.unwatch(copies._links[1]._sock))
    copies.abandon()
    wires.until(lambda: bool(wires.recorders[1].losses))  # the last copy was this process's own
    assert wires.recorders[0].losses == []
    wires.run(wires.transports[1].close)
    wires.loop.stop()


def test_an_admission_that_fails_ends_its_own_connection_only() -> None:
    admitted: queue.Queue[Stranger] = queue.Queue()
    failures = iter([OSError("the peer has reset it")])

    def admit(stranger: Stranger) -> None:
        for failure in failures:
            raise failure
        admitted.put(stranger)

    loop, listener = Loop(), open_listener("127.0.0.1", 0)
    address = listener.getsockname()
    strangers = Strangers(loop, [listener], admit)
    loop.start()
    loop.post(strangers.start, TOKEN)
    with socket.create_connection(address, HANG_S) as first, socket.create_connection(address, HANG_S) as second:
        shake_hands(first, Role.DIALER, TOKEN)
        assert hears_the_end(first)
        shake_hands(second, Role.DIALER, TOKEN)
        admitted.get(timeout=HANG_S).sock.close()
    loop.post(strangers.close)
    loop.stop()
