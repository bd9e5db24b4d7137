"""The link: a stream of bytes becomes frames again, however it was divided."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from undertow.engine.core.frames import HEADER_BYTES, Header, Kind, pack
from undertow.engine.wire.link import DRAIN_TIMEOUT_S, STAGING_BYTES, Link
from undertow.tracing import events
from undertow.tracing.recorder import Recorder


class HandLoop:
    """A loop that is turned by hand: `turn` serves every socket that is ready now."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.timers.append((delay_s, call))

    def watch(self, sock: socket.socket, mask: int, call: Callable[[int], None]) -> None:
        self._selector.register(sock, mask, call)

    def rewatch(self, sock: socket.socket, mask: int, call: Callable[[int], None]) -> None:
        self._selector.modify(sock, mask, call)

    def unwatch(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)

    def turn(self) -> bool:
        ready = self._selector.select(0) if self._selector.get_map() else []
        for key, mask in ready:
            key.data(mask)
        return bool(ready)

    def close(self) -> None:
        self._selector.close()


class Inbox:
    """Keeps what arrives; drops the bodies of keys in `unwanted`."""

    def __init__(self) -> None:
        self.unwanted: set[int] = set()
        self.frames: list[tuple[Kind, int, bytes | None]] = []
        self.lost: list[str] = []

    def sink(self, peer: int, header: Header) -> Any | None:
        return None if header.key in self.unwanted else bytearray(header.length)

    def arrived(self, peer: int, header: Header, body: Any | None) -> None:
        self.frames.append((header.kind, header.key, None if body is None else bytes(body)))


@pytest.fixture
def loop() -> Iterator[HandLoop]:
    made = HandLoop()
    yield made
    made.close()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def ends(loop: HandLoop, inbox: Inbox) -> Iterator[tuple[socket.socket, Link]]:
    """A plain socket, and the link at its other end."""
    plain, linked = socket.socketpair()
    link = Link(linked, 5, loop=loop, receiver=inbox, on_lost=inbox.lost.append)  # type: ignore[arg-type]
    yield plain, link
    link.close()
    plain.close()


def frame(key: int, body: bytes | None = None, kind: Kind = Kind.PUSH) -> bytes:
    return pack(Header(kind, key=key, length=len(body or b""))) + (body or b"")


def settle(loop: HandLoop) -> None:
    while loop.turn():
        pass


BODY = bytes(range(256)) * 3
STREAM = frame(1, b"first") + frame(2) + frame(3, BODY) + frame(4, b"x", Kind.CONTROL) + frame(5)
FRAMES = [
    (Kind.PUSH, 1, b"first"),
    (Kind.PUSH, 2, None),
    (Kind.PUSH, 3, BODY),
    (Kind.CONTROL, 4, b"x"),
    (Kind.PUSH, 5, None),
]


def test_several_frames_in_one_read_arrive_in_order(
    loop: HandLoop, inbox: Inbox, ends: tuple[socket.socket, Link]
) -> None:
    ends[0].sendall(STREAM)
    loop.turn()
    assert inbox.frames == FRAMES


def test_frames_split_at_every_byte_boundary_arrive_whole(loop: HandLoop, inbox: Inbox) -> None:
    for cut in range(1, len(STREAM)):
        plain, linked = socket.socketpair()
        link = Link(linked, 5, loop=loop, receiver=inbox, on_lost=inbox.lost.append)  # type: ignore[arg-type]
        inbox.frames.clear()
        for piece in (STREAM[:cut], STREAM[cut:]):
            plain.sendall(piece)
            settle(loop)
        assert inbox.frames == FRAMES, f"cut at {cut}"
        link.close()
        plain.close()


def test_frames_that_come_byte_by_byte_arrive_whole(
    loop: HandLoop, inbox: Inbox, ends: tuple[socket.socket, Link]
) -> None:
    for byte in STREAM:
        ends[0].sendall(bytes([byte]))
        loop.turn()
    assert inbox.frames == FRAMES


@pytest.mark.parametrize("size", [STAGING_BYTES - HEADER_BYTES, STAGING_BYTES, STAGING_BYTES + 1, 1_000_003])
def test_a_body_larger_than_the_staging_buffer_arrives_whole(
    loop: HandLoop, inbox: Inbox, ends: tuple[socket.socket, Link], size: int
) -> None:
    body = np.random.default_rng(size).bytes(size)
    data = memoryview(frame(1, body) + frame(2, b"next"))
    ends[0].setblocking(False)
    while data:
        try:
            data = data[ends[0].send(data) :]
        except BlockingIOError:
            settle(loop)
    settle(loop)
    assert inbox.frames == [(Kind.PUSH, 1, body), (Kind.PUSH, 2, b"next")]


@pytest.mark.parametrize("size", [1, 700, STAGING_BYTES, 5 * STAGING_BYTES + 1])
def test_a_dropped_body_does_not_disturb_the_next_frame(
    loop: HandLoop, inbox: Inbox, ends: tuple[socket.socket, Link], size: int
) -> None:
    inbox.unwanted = {1}
    data = frame(1, bytes(size)) + frame(2, b"next")
    for start in range(0, len(data), 3000):
        ends[0].sendall(data[start : start + 3000])
        settle(loop)
    assert inbox.frames == [(Kind.PUSH, 2, b"next")]
    assert inbox.lost == []


def test_many_frames_of_one_peer_do_not_starve_the_loop(
    loop: HandLoop, inbox: Inbox, ends: tuple[socket.socket, Link]
) -> None:
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    body = bytes(10_000)
    for _ in range(15):
        ends[0].sendall(frame(1, body))
    loop.turn()
    assert 0 < len(inbox.frames) < 15
    settle(loop)
    assert len(inbox.frames) == 15


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n".ljust(HEADER_BYTES, b"x"), bytes(HEADER_BYTES)])
def test_garbage_ends_the_link_with_a_reason(
    loop: HandLoop, inbox: Inbox, ends: tuple[socket.socket, Link], garbage: bytes
) -> None:
    ends[0].sendall(frame(1) + garbage + frame(2))
    settle(loop)
    assert [key for _, key, _ in inbox.frames] == [1]
    assert len(inbox.lost) == 1
    assert "bytes from it were damaged on the way (a frame starts with" in inbox.lost[0]
    assert not ends[1].is_open


def test_a_peer_that_sends_garbage_for_ever_is_read_in_turn_and_cut_off_after_a_while(
    loop: HandLoop, inbox: Inbox, ends: tuple[socket.socket, Link]
) -> None:
    ends[0].sendall(bytes(HEADER_BYTES))
    settle(loop)
    assert ends[0].recv(1) == b""
    for _ in range(100):
        ends[0].sendall(bytes(100_000))
        settle(loop)
    assert not loop.turn()  # it sleeps until more comes
    assert ends[1].is_draining
    [(delay_s, close)] = loop.timers
    assert delay_s == DRAIN_TIMEOUT_S
    close()
    assert not ends[1].is_draining
    with pytest.raises(BrokenPipeError):
        ends[0].sendall(b"more")
    assert len(inbox.lost) == 1


def test_a_link_that_breaks_while_it_drains_is_lost_once(
    loop: HandLoop, inbox: Inbox, ends: tuple[socket.socket, Link]
) -> None:
    def tell(reason: str) -> None:
        inbox.lost.append(reason)
        ends[1].send(frame(1), None)

    ends[1]._on_lost = tell
    ends[0].sendall(bytes(HEADER_BYTES))
    ends[0].close()
    settle(loop)
    assert len(inbox.lost) == 1
    assert not ends[1].is_open
    assert not ends[1].is_draining


@pytest.mark.parametrize("sent", [0, 10, HEADER_BYTES, HEADER_BYTES + 3])
def test_a_peer_that_closes_also_in_the_middle_of_a_frame_is_lost_once(
    loop: HandLoop, inbox: Inbox, ends: tuple[socket.socket, Link], sent: int
) -> None:
    ends[0].sendall(frame(1, b"five!")[:sent])
    ends[0].close()
    settle(loop)
    assert inbox.frames == []
    assert inbox.lost == ["its connection closed (the process ended)"]


def test_what_is_sent_is_what_the_peer_reads(ends: tuple[socket.socket, Link]) -> None:
    ends[1].send(pack(Header(Kind.PUSH, key=1, length=12)), np.arange(3, dtype=np.float32))
    ends[1].send(pack(Header(Kind.RESULT, key=2)), None)
    expected = frame(1, np.arange(3, dtype=np.float32).tobytes()) + frame(2, kind=Kind.RESULT)
    assert ends[0].recv(1 << 16) == expected
    assert ends[1].bytes_sent == len(expected)


def test_an_empty_body_is_no_body(ends: tuple[socket.socket, Link]) -> None:
    ends[1].send(pack(Header(Kind.CONTROL, key=1)), b"")
    ends[1].send(pack(Header(Kind.CONTROL, key=2)), np.empty(0, np.uint8))
    assert ends[0].recv(1 << 16) == frame(1, kind=Kind.CONTROL) + frame(2, kind=Kind.CONTROL)


def test_frames_for_a_slow_reader_wait_and_leave_in_order(loop: HandLoop, ends: tuple[socket.socket, Link]) -> None:
    plain, link = ends
    bodies = [np.full(300_000, number, np.uint8) for number in range(5)]
    for number, body in enumerate(bodies):
        link.send(pack(Header(Kind.PUSH, key=number, length=body.nbytes)), body)
    expected = b"".join(frame(number, body.tobytes()) for number, body in enumerate(bodies))
    assert link.bytes_sent < len(expected)
    received = bytearray()
    while len(received) < len(expected):
        received += plain.recv(1 << 16)
        loop.turn()
    assert received == expected
    assert link.bytes_sent == len(expected)
    assert not loop.turn()  # nothing to write any more: the loop may sleep


def test_a_broken_pipe_is_a_loss_with_a_reason(inbox: Inbox, ends: tuple[socket.socket, Link]) -> None:
    ends[0].close()
    ends[1].send(frame(1), None)
    assert inbox.lost == ["its connection closed (the process ended)"]


def test_a_link_that_is_closed_on_purpose_is_not_lost(
    loop: HandLoop, inbox: Inbox, ends: tuple[socket.socket, Link]
) -> None:
    ends[1].close()
    ends[1].close("too late")
    assert inbox.lost == []
    assert ends[0].recv(10) == b""


def test_a_receiver_may_close_the_link_it_is_called_by(
    loop: HandLoop, inbox: Inbox, ends: tuple[socket.socket, Link]
) -> None:
    inbox.arrived = lambda peer, header, body: (inbox.frames.append((header.kind, header.key, None)), ends[1].close())  # type: ignore[assignment,method-assign]
    ends[0].sendall(frame(1, b"abc") + frame(2) + frame(3))
    settle(loop)
    assert [key for _, key, _ in inbox.frames] == [1]


def test_a_slice_is_noted_when_its_last_byte_is_with_the_system(loop: HandLoop, inbox: Inbox) -> None:
    plain, linked = socket.socketpair()
    recorder = Recorder(lambda: 7.0)
    link = Link(linked, 5, loop=loop, receiver=inbox, on_lost=inbox.lost.append, recorder=recorder)  # type: ignore[arg-type]
    link.send(pack(Header(Kind.PUSH, key=1)), None)
    recorder.start()
    large = bytes(8 << 20)  # more than the system takes at once
    for header, body in (
        (Header(Kind.CONTROL, length=1), b"x"),
        (Header(Kind.PUSH, key=2, step=3), None),
        (Header(Kind.RESULT, key=4, step=5, length=len(large)), large),
    ):
        link.send(pack(header), body)
    assert recorder.events() == [events.Written(7.0, 5, Kind.PUSH, 2, 3)]
    plain.setblocking(False)
    while len(recorder.events()) < 2:
        with contextlib.suppress(BlockingIOError):
            plain.recv(1 << 20)
        loop.turn()
    assert recorder.events()[1] == events.Written(7.0, 5, Kind.RESULT, 4, 5)
    link.close()
    plain.close()
