"""The frame sender: what leaves when, what returns credit, and which receipts travel alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.fake_group import make_shape
from undertow.engine.core import frames
from undertow.engine.core.dtypes import DType
from undertow.engine.core.frames import RECEIPT, Body, Header, Kind, Unexpected
from undertow.engine.core.rounds import KeySpec, Op
from undertow.engine.wire.frame_sender import FrameSender, make_body
from undertow.sizing import Sizes
from undertow.tracing import events
from undertow.tracing.recorder import Recorder

SLICE_BYTES = 1024


class Outgoing:
    """A transport that keeps what it is given."""

    bytes_sent = 0
    is_draining = False

    def __init__(self) -> None:
        self.frames: list[tuple[int, Header]] = []
        self.bodies: list[Any] = []
        self.checked = {1, 2}

    def send(self, peer: int, header: bytes, body: Any = None) -> None:
        self.frames.append((peer, frames.unpack(header)))
        self.bodies.append(body)

    def is_connected(self, peer: int) -> bool:
        return True

    def checks_bodies(self, peer: int) -> bool:
        return peer in self.checked

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class Bench:
    """The sender of rank 0 of three."""

    def __init__(self, credit_slices: int = 2, **options: Any) -> None:
        self.out = Outgoing()
        self.now_s = 10.0
        self.recorder = Recorder(lambda: self.now_s)
        options = {"credit_bytes": credit_slices * SLICE_BYTES, "sizes": Sizes(fixed=SLICE_BYTES)} | options
        self.sender = FrameSender(make_shape(3, **options), self.out, clock=lambda: self.now_s, recorder=self.recorder)

    def push(self, key: int, *peers: int, priority: int = 0) -> None:
        """Queue a slice of this key, and send what can leave."""
        header = Header(Kind.PUSH, key, 1, length=SLICE_BYTES, job=7)
        body = Body(bytes(SLICE_BYTES))
        self.sender.queue([self.sender.make_frame(peer, header, body) for peer in peers or (1,)], priority)
        self.sender.pump()

    def hear(self, peer: int = 1, *, received: int = 0, **fields: Any) -> None:
        """Let a frame of this peer arrive and be handled."""
        header = Header(**{"kind": Kind.RESULT, "rank": peer, "job": 7, "received": received, **fields})
        self.sender.note_arrived(peer, header)
        self.sender.go_on(peer, header)

    @property
    def keys(self) -> list[int]:
        return [header.key for _, header in self.out.frames if header.kind is Kind.PUSH]

    @property
    def receipts(self) -> list[tuple[int, int]]:
        """Each receipt that travelled alone: to whom, and for how many bytes."""
        return [(peer, header.received) for peer, header in self.out.frames if header.kind is Kind.RECEIVED]


def test_frames_leave_as_far_as_credit_allows_and_the_rest_wait_in_order() -> None:
    bench = Bench(2)
    for key, priority in ((1, 5), (2, 5), (3, 5), (4, 0)):
        bench.push(key, priority=priority)
    assert bench.keys == [1, 2]
    assert not bench.sender.is_empty
    bench.hear(received=2 * SLICE_BYTES)
    assert bench.keys == [1, 2, 4, 3]
    assert bench.sender.is_empty


def test_credit_that_was_never_used_is_refused() -> None:
    bench = Bench()
    bench.push(1)
    with pytest.raises(Unexpected, match="rank 1 reports 1025 bytes received, which is impossible"):
        bench.hear(received=SLICE_BYTES + 1)
    with pytest.raises(Unexpected, match="rank 2 reports 1 bytes received"):
        bench.hear(2, received=1)


def test_every_frame_reports_the_bytes_received_from_its_peer() -> None:
    bench = Bench(8)
    bench.hear(1, length=100)
    bench.hear(1, length=20)
    bench.push(5, 1, 2)
    assert [(peer, header.received) for peer, header in bench.out.frames] == [(1, 120), (2, 0)]


def test_a_receipt_is_sent_alone_only_if_requested_and_not_yet_reported_by_a_frame() -> None:
    bench = Bench(8)
    bench.hear(1, length=100)
    assert bench.receipts == []
    bench.hear(1, length=100, flags=RECEIPT)
    assert bench.receipts == [(1, 200)]
    bench.hear(1, flags=RECEIPT)  # nothing has come since
    assert bench.receipts == [(1, 200)]


def test_a_frame_to_the_peer_carries_the_receipt() -> None:
    bench = Bench(1)
    bench.push(1, 1, 2)  # the second one waits for credit
    bench.hear(2, length=100)
    header = Header(Kind.RESULT, rank=1, received=SLICE_BYTES, length=50, flags=RECEIPT, job=7)
    bench.push(3, 1, priority=-1)
    bench.sender.note_arrived(1, header)
    bench.sender.go_on(1, header)
    assert bench.keys == [1, 3]
    assert bench.out.frames[-1][1].received == 50
    assert bench.receipts == []


def test_a_frame_requests_a_receipt_when_credit_is_short() -> None:
    bench = Bench(2)
    bench.sender.expect_size(SLICE_BYTES)
    bench.push(1)
    assert bench.out.frames[0][1].flags & RECEIPT
    rich = Bench(64)
    rich.sender.expect_size(SLICE_BYTES)
    rich.push(1)
    assert not rich.out.frames[0][1].flags & RECEIPT


def test_bodies_have_checksums_where_the_transport_wants_them() -> None:
    bench = Bench(8)
    bench.out.checked = {2}
    bench.push(1, 1, 2)
    assert [bool(header.flags & frames.CHECKED) for _, header in bench.out.frames] == [False, True]
    assert bench.out.bodies == [bytes(SLICE_BYTES)] * 2


def test_a_change_of_credit_requests_receipts_from_all_peers_if_bytes_are_in_flight() -> None:
    bench = Bench(4)
    bench.sender.set_credit(8 * SLICE_BYTES)
    assert bench.out.frames == []
    bench.push(1)
    bench.sender.set_credit(4 * SLICE_BYTES)
    asked = [(peer, header.kind) for peer, header in bench.out.frames if header.flags & RECEIPT]
    assert asked == [(1, Kind.RECEIVED), (2, Kind.RECEIVED)]


def test_credit_follows_the_slice_size_unless_it_was_set() -> None:
    bench = Bench(credit_bytes=0)
    slices = make_shape(3).credit_slices
    assert bench.sender.outbox.credit_bytes == slices * SLICE_BYTES
    bench.sender.resize(2 * SLICE_BYTES)
    assert bench.sender.outbox.credit_bytes == 2 * slices * SLICE_BYTES
    given = Bench(4)
    given.sender.resize(2 * SLICE_BYTES)
    assert given.sender.outbox.credit_bytes == 4 * SLICE_BYTES


def test_two_of_the_largest_slices_fit_into_the_credit_however_small_slices_become() -> None:
    bench = Bench(credit_bytes=0)
    large = 100 * SLICE_BYTES
    bench.sender.expect_sizes(
        [KeySpec(number, size // 4, DType.FLOAT32, Op.SUM, 1) for number, size in ((1, 64), (2, large))]
    )
    bench.sender.expect_size(SLICE_BYTES)
    bench.sender.resize(SLICE_BYTES)
    assert bench.sender.outbox.credit_bytes == 2 * large


def test_more_credit_releases_waiting_frames() -> None:
    bench = Bench(credit_bytes=0)
    count = 2 * make_shape(3).credit_slices
    for key in range(count):
        bench.push(key)
    assert len(bench.keys) < count
    bench.sender.resize(4 * SLICE_BYTES)
    assert bench.keys == list(range(count))


def test_the_rate_counts_received_bytes_while_others_wait() -> None:
    bench = Bench(1)
    for key in range(1, 60):
        bench.push(key)
    for count in range(1, 50):
        bench.now_s += 0.5
        bench.hear(received=count * SLICE_BYTES)
    assert bench.sender.rate.bytes_per_s == pytest.approx(2 * SLICE_BYTES)


def test_frames_sent_and_received_are_recorded_while_tracing() -> None:
    bench = Bench(1)
    bench.push(1)
    bench.recorder.start()
    bench.push(2)
    bench.now_s = 11.0
    bench.sender.note_arriving(1, 10.5)
    bench.hear(received=SLICE_BYTES, key=9, step=3, length=40)
    bench.hear(kind=Kind.RECEIVED, received=2 * SLICE_BYTES)
    assert bench.recorder.take() == [
        events.Received(10.5, 11.0, 1, Kind.RESULT, 9, 3, 40),
        events.Sent(10.0, 11.0, 1, Kind.PUSH, 2, 1, SLICE_BYTES),
    ]


def test_an_array_becomes_a_body_and_nothing_becomes_none() -> None:
    assert make_body(None) is None
    body = make_body(np.arange(3, dtype=np.float32))
    assert body is not None
    assert bytes(body.data) == np.arange(3, dtype=np.float32).tobytes()
