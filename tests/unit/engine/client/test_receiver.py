"""The receiver of a group: what reaches whom, what is dropped and counted, and that nothing is raised."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.fake_group import make_shape
from tests.support.timers import Timers
from undertow.engine.client.helper import OpenWork
from undertow.engine.client.receiver import GroupReceiver
from undertow.engine.client.waiting import Waiters
from undertow.engine.coordinator import messages
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import MAX_CONTROL_BYTES, Header, Kind, Unexpected
from undertow.errors import PeerLost, UndertowError


class FakeControl:
    """Control that keeps what it is told; `failure` is raised by whatever is called next."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.failure: Exception | None = None

    def _tell(self, *what: Any) -> None:
        self.told.append(what)
        if self.failure is not None:
            raise self.failure

    def note_alive(self, peer: int) -> None:
        self.told.append(("alive", peer))

    def check_departed(self) -> None:
        self.told.append("check")

    def handle_message(self, peer: int, message: messages.Message) -> None:
        self._tell(peer, message)

    def on_connected(self, peer: int) -> None:
        self._tell("connected", peer)

    def lose(self, peer: int, reason: str) -> None:
        self._tell("lost", peer, reason)

    def tick(self, now: float) -> None:
        self._tell("tick", now)


class FakeExchange:
    def __init__(self) -> None:
        self.worker = self
        self.open_work = OpenWork()
        self.contributed: list[Contribution] = []
        self.handled: list[Header] = []
        self.failure: Exception | None = None

    def sink(self, peer: int, header: Header) -> bytearray:
        if self.failure is not None:
            raise self.failure
        return bytearray(header.length)

    def handle(self, peer: int, header: Header, body: Any) -> None:
        self.sink(peer, header)
        self.handled.append(header)

    def contribute(self, contributions: Sequence[Contribution]) -> None:
        self.contributed += contributions


class Bench:
    """The receiver of one of three ranks, whose job has the number 7."""

    def __init__(self, size: int = 3) -> None:
        self.control: Any = FakeControl()
        self.exchange: Any = FakeExchange()
        self.loop: Any = Timers()
        self.waiters = Waiters(60.0, lambda waited_s: None)
        self.receiver = GroupReceiver(
            make_shape(size, names=(4, 5, 6)), self.loop, self.exchange, self.control, self.waiters
        )

    def tell(self, peer: int, message: messages.Message) -> None:
        body = messages.encode(message)
        self.receiver.arrived(peer, Header(Kind.CONTROL, rank=peer, length=len(body), job=7), body)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def frame(kind: Kind = Kind.RESULT, **fields: Any) -> Header:
    return Header(**{"kind": kind, "key": 3, "step": 1, "rank": 1, "length": 8, "job": 7, **fields})


ITEM = Contribution(3, np.zeros(2), None, 1, lambda done: None)


def test_all_are_connected_once_the_last_peer_is(bench: Bench) -> None:
    bench.receiver.connected(2)
    assert not bench.receiver.all_connected.is_set()
    assert bench.receiver.never_connected == [1]
    bench.receiver.connected(1)
    assert bench.receiver.all_connected.is_set()


def test_a_group_of_one_has_nobody_to_wait_for() -> None:
    assert Bench(1).receiver.all_connected.is_set()


def test_slices_go_to_the_exchange_and_messages_to_the_control(bench: Bench) -> None:
    header = frame()
    bench.receiver.arrived(1, header, bench.receiver.sink(1, header))
    assert bench.exchange.handled == [header]
    bench.tell(2, messages.Farewell())
    assert bench.control.told == [("alive", 1), "check", ("alive", 2), (2, messages.Farewell())]


def test_a_heartbeat_is_only_a_sign_of_life(bench: Bench) -> None:
    bench.receiver.arrived(1, Header(Kind.HEARTBEAT, rank=1, job=7), None)
    assert bench.control.told == [("alive", 1)]
    assert not bench.receiver.dropped


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (frame(job=8), "a frame of job 8 and rank 1 on the link to rank 1"),
        (frame(rank=2), "a frame of job 7 and rank 2 on the link to rank 1"),
        (frame(Kind.HEARTBEAT), "a HEARTBEAT of 8 bytes"),
        (frame(Kind.CONTROL, length=MAX_CONTROL_BYTES + 1), "a CONTROL of 67108865 bytes"),
    ],
)
def test_invalid_frames_get_no_memory(
    bench: Bench, caplog: pytest.LogCaptureFixture, header: Header, words: str
) -> None:
    assert bench.receiver.sink(1, header) is None
    assert f"dropped a frame from rank 5: {words}" in caplog.text
    assert bench.waiters.error is None


def test_late_frames_of_another_job_change_nothing(bench: Bench) -> None:
    bench.receiver.arrived(1, frame(job=8), bytearray(8))
    bench.receiver.arrived(1, frame(Kind.CONTROL, job=8), messages.encode(messages.Farewell()))
    assert bench.exchange.handled == []
    assert bench.control.told == [("alive", 1)] * 2
    assert bench.receiver.dropped == {"RESULT": 1, "CONTROL": 1}


def test_the_first_dropped_frame_is_logged_and_the_next_are_only_counted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.exchange.failure = Unexpected("a result that was not expected")
    for _ in range(3):
        bench.receiver.arrived(1, frame(), None)
    bench.exchange.failure = MemoryError()
    assert bench.receiver.sink(1, frame(length=1 << 40)) is None
    bench.receiver.arrived(1, frame(Kind.CONTROL), b"\xff")
    assert bench.receiver.dropped == {"RESULT": 4, "CONTROL": 1}
    [record] = caplog.records
    assert "a result that was not expected" in record.getMessage()
    assert bench.waiters.error is None


def test_missing_memory_is_logged_with_its_size(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.exchange.failure = MemoryError()
    assert bench.receiver.sink(1, frame(length=1 << 40)) is None
    assert "there is no memory for its 1099511627776 bytes" in caplog.text


def test_a_contribution_is_sent_once_its_copy_from_the_device_has_ended(bench: Bench) -> None:
    ready: list[bool] = []
    bench.exchange.open_work.begin()
    bench.receiver.contribute([ITEM], lambda: bool(ready))
    bench.loop.fire()
    assert bench.exchange.contributed == []
    assert not bench.exchange.open_work.is_done
    ready.append(True)
    bench.loop.fire()
    assert bench.exchange.contributed == [ITEM]
    assert bench.exchange.open_work.is_done
    assert bench.control.told == ["check"]


def test_a_contribution_that_is_ready_is_not_open_work(bench: Bench) -> None:
    bench.exchange.open_work.begin()  # of something else
    bench.receiver.contribute([ITEM], None)
    assert bench.exchange.contributed == [ITEM]
    assert not bench.exchange.open_work.is_done


def test_a_failed_group_contributes_nothing(bench: Bench) -> None:
    bench.receiver.contribute([ITEM], lambda: False)
    bench.waiters.fail(PeerLost("rank 5 was lost"))
    bench.loop.fire()
    bench.receiver.contribute([ITEM], None)
    assert bench.exchange.contributed == []
    assert bench.loop.due == []


@pytest.mark.parametrize(
    "act",
    [
        lambda receiver: receiver.tick(1.0),
        lambda receiver: receiver.connected(1),
        lambda receiver: receiver.lost(1, "its connection broke"),
        lambda receiver: receiver.arrived(1, frame(Kind.CONTROL), messages.encode(messages.Farewell())),
    ],
    ids=["tick", "connected", "lost", "arrived"],
)
def test_an_error_fails_the_group_instead_of_the_engine(
    bench: Bench, act: Callable[[GroupReceiver], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "undertow")
    bench.control.failure = PeerLost("rank 6 was lost")
    act(bench.receiver)
    with pytest.raises(PeerLost, match="rank 6 was lost"):
        bench.waiters.check()
    other = Bench()
    other.control.failure = ZeroDivisionError("a defect")
    act(other.receiver)
    with pytest.raises(UndertowError, match="the engine failed: ZeroDivisionError: a defect"):
        other.waiters.check()
