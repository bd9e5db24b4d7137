"""The exchange: slices out, results in place, credit back; invalid frames are refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from undertow.engine.client.exchange import Exchange
from undertow.engine.core import frames
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import ABSENT, Header, Kind, Unexpected
from undertow.engine.core.rounds import EVERYONE, Array, KeySpec, Op
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Slice, TensorRange
from undertow.engine.wire.memory import MemoryNetwork
from undertow.sizing import Sizes
from undertow.tracing import events
from undertow.tracing.recorder import process_recorder

SLICE_BYTES = 16
MINE, THEIRS = 1, 2  # keys that rank 0 and rank 1 own
MORE = [11, 12, 13, 14, 15]  # rank 1 owns them all


class Bench:
    """The exchanges of some ranks; frames move when `deliver` or `settle` says so."""

    def __init__(self, size: int = 2, *, credit_slices: int = 4, op: Op = Op.SUM, keep: bool = False) -> None:
        self.network = MemoryNetwork(size)
        self.delivered: list[tuple[int, int, Header]] = []
        self.exchanges = []
        for rank in range(size):
            shape = Shape(
                rank=rank,
                hosts=["host"] * size,
                job=7,
                sizes=Sizes(fixed=SLICE_BYTES),
                credit_bytes=credit_slices * SLICE_BYTES,
                silence_timeout_s=10.0,
                stall_timeout_s=10.0,
            )
            self.exchanges.append(Exchange(shape, self.network.transports[rank]))
            self.exchanges[rank].learn([_slice(key, op, keep) for key in (MINE, THEIRS, *MORE)])
        self.network.connect([_Receiver(exchange) for exchange in self.exchanges])

    def deliver(self, sender: int, receiver: int) -> Header:
        header = self.network.deliver(sender, receiver)
        assert header is not None
        self.delivered.append((sender, receiver, header))
        return header

    def settle(self) -> None:
        while links := self.network.links_with_frames():
            self.deliver(*links[0])

    def keys_delivered(self, kind: Kind) -> list[int]:
        return [header.key for _, _, header in self.delivered if header.kind is kind]


class _Receiver:
    def __init__(self, exchange: Exchange) -> None:
        self.sink = exchange.sink
        self.arrived = exchange.handle

    def connected(self, peer: int) -> None: ...

    def lost(self, peer: int, reason: str) -> None: ...


def _slice(key: int, op: Op, keep: bool) -> Slice:
    return Slice(KeySpec(key, 4, DType.FLOAT32, op, 0 if key == MINE else 1, keep), (TensorRange(0, 0, 4, 0),))


class Share:
    """A contribution to a key, and what became of it: the result lands in `array`."""

    def __init__(self, key: int, value: float | None = 1.0, *, wants: bool = True, **options: Any) -> None:
        self.array: Array = np.full(4, 0.0 if value is None else value, np.float32)
        self.answers: list[Contribution] = []
        self.item = Contribution(
            key,
            None if value is None else self.array,
            self.array if wants else None,
            int(value is not None),
            self.answers.append,
            **options,
        )

    @property
    def result(self) -> float | None:
        return float(self.array[0]) if self.answers else None


def give(bench: Bench, rank: int, *shares: Share) -> None:
    bench.exchanges[rank].worker.contribute([share.item for share in shares])


def header(kind: Kind, key: int = MINE, step: int = 1, **fields: Any) -> Header:
    return Header(kind, key, step, **{"rank": 1, "length": SLICE_BYTES, "dtype": DType.FLOAT32, "job": 7, **fields})


def test_all_begin_with_another_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all began with rank 0, its link would be the target of all, and the others would stand still."""
    bench = Bench(4)
    sent: list[int] = []
    transport = bench.network.transports[1]
    send = transport.send

    def watch(peer: int, header: bytes, body: Any = None) -> None:
        if frames.unpack(header).kind is Kind.RESULT:
            sent.append(peer)
        send(peer, header, body)

    monkeypatch.setattr(transport, "send", watch)
    for rank in range(4):
        give(bench, rank, Share(THEIRS))
    bench.settle()
    assert sent == [2, 3, 0]


def test_what_goes_to_several_peers_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    compute = frames._compute_checksum
    monkeypatch.setattr(frames, "_compute_checksum", lambda body: (hashed.append(bytes(body)), compute(body))[1])
    bench = Bench(4, op=Op.SUM)
    for rank in range(4):
        give(bench, rank, Share(THEIRS, 10.0**rank))
    for rank in (0, 2, 3):
        bench.deliver(rank, 1)
    assert [bench.network.links_with_frames()] == [[(1, 0), (1, 2), (1, 3)]]
    assert hashed.count(np.full(4, 1111.0, np.float32).tobytes()) == 1


def test_a_piece_for_everybody_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    compute = frames._compute_checksum
    bench = Bench(4)
    everyones = Slice(KeySpec(99, 0, DType.FLOAT32, Op.GATHER, EVERYONE), (TensorRange(0, 0, 4, 0),))
    bench.exchanges[0].learn([everyones])
    monkeypatch.setattr(frames, "_compute_checksum", lambda body: (hashed.append(bytes(body)), compute(body))[1])
    share = Share(99, 5.0, wants=False)
    give(bench, 0, share)
    assert len(bench.network.links_with_frames()) == 3
    assert hashed == [share.array.tobytes()]


def test_results_land_in_place_on_all_ranks() -> None:
    bench = Bench(3)
    shares = [[Share(key, 10.0**rank) for key in (MINE, THEIRS)] for rank in range(3)]
    for rank in (2, 0, 1):
        give(bench, rank, *shares[rank])
    bench.settle()
    assert [[share.result for share in each] for each in shares] == [[111.0, 111.0]] * 3
    assert all(len(share.answers) == 1 for each in shares for share in each)


def test_a_worker_alone_is_answered_at_once() -> None:
    bench = Bench(1)
    share = Share(MINE, 3.0)
    give(bench, 0, share)
    assert share.result == 3.0
    assert bench.network.transports[0].bytes_sent == 0


def test_who_wants_no_result_gets_no_bytes_but_an_answer() -> None:
    bench = Bench()
    shares = [Share(THEIRS, 1.0, wants=False), Share(THEIRS, 2.0)]
    give(bench, 0, shares[0])
    give(bench, 1, shares[1])
    bench.settle()
    assert [len(share.answers) for share in shares] == [1, 1]
    assert shares[0].array[0] == 1.0
    [result] = [header for _, _, header in bench.delivered if header.kind is Kind.RESULT]
    assert result.length == 0


def test_an_empty_contribution_gets_the_result_and_who_was_present() -> None:
    bench = Bench()
    empty, full = Share(THEIRS, None), Share(THEIRS, 2.0)
    give(bench, 0, empty)
    give(bench, 1, full)
    bench.settle()
    assert empty.result == 2.0
    assert empty.answers[0].present == 1


def test_where_all_are_empty_nothing_is_written() -> None:
    bench = Bench()
    shares = [Share(THEIRS, None), Share(THEIRS, None)]
    for rank, share in enumerate(shares):
        share.array[:] = 77
        give(bench, rank, share)
    bench.settle()
    assert [share.result for share in shares] == [77, 77]
    assert [share.answers[0].present for share in shares] == [0, 0]


def test_rounds_of_one_key_are_sequential() -> None:
    bench = Bench()
    mine, theirs = [[Share(THEIRS, float(step + rank)) for step in range(5)] for rank in range(2)]
    give(bench, 0, *mine)
    give(bench, 1, *theirs)
    bench.settle()
    assert [share.result for share in mine] == [share.result for share in theirs] == [1, 3, 5, 7, 9]


def test_the_urgent_slice_goes_first_in_both_directions() -> None:
    bench = Bench(credit_slices=2)
    for rank in range(2):
        give(bench, rank, *[Share(key, priority=-key) for key in MORE])
        bench.settle()
    assert bench.keys_delivered(Kind.PUSH) == MORE[::-1]
    assert bench.keys_delivered(Kind.RESULT) == MORE[::-1]


def test_no_more_than_the_credit_leaves_before_it_is_received() -> None:
    bench = Bench(credit_slices=2)
    give(bench, 0, *[Share(key) for key in MORE])
    assert bench.network.transports[0].bytes_sent == 2 * (SLICE_BYTES + frames.HEADER_BYTES)
    bench.settle()
    assert bench.keys_delivered(Kind.PUSH) == MORE


def test_credit_comes_back_when_the_bytes_have_come_not_when_the_round_is_done() -> None:
    bench = Bench(3, credit_slices=2)
    give(bench, 0, *[Share(key) for key in MORE])
    bench.settle()  # nobody else has contributed: no round is done
    assert bench.keys_delivered(Kind.PUSH) == MORE
    assert not bench.keys_delivered(Kind.RESULT)


def test_credit_travels_with_other_frames_where_it_can() -> None:
    bench = Bench(credit_slices=20)
    give(bench, 0, Share(THEIRS))
    bench.settle()
    give(bench, 1, Share(THEIRS))
    bench.settle()
    assert [(header.kind, header.received) for _, _, header in bench.delivered] == [
        (Kind.PUSH, 0),
        (Kind.RESULT, SLICE_BYTES),
    ]


def test_a_pull_gets_the_kept_value_near_and_far() -> None:
    bench = Bench(op=Op.SUM, keep=True)
    for rank in range(2):
        give(bench, rank, Share(MINE, 1.0 + rank), Share(THEIRS, 10.0 + rank))
    bench.settle()
    pulls = [[Share(key, None, is_pull=True) for key in (MINE, THEIRS)] for _ in range(2)]
    for rank in range(2):
        give(bench, rank, *pulls[rank])
    bench.settle()
    assert [[share.result for share in each] for each in pulls] == [[3.0, 21.0]] * 2


def test_a_pull_waits_for_the_pushes_before_it() -> None:
    bench = Bench(keep=True)
    pull = Share(THEIRS, None, is_pull=True)
    give(bench, 0, Share(THEIRS, 1.0), pull)
    bench.settle()
    assert not pull.answers
    give(bench, 1, Share(THEIRS, 2.0))
    bench.settle()
    assert pull.result == 3.0


def test_a_join_completes_open_rounds_which_report_the_absence() -> None:
    bench = Bench(op=Op.MEAN)
    share = Share(THEIRS, 4.0)
    give(bench, 0, share)
    bench.settle()
    bench.exchanges[1].join(1, [MINE, THEIRS], 0, divide_by_active=True)
    bench.settle()
    assert share.result == 4.0
    assert share.answers[0].absent


def test_after_a_join_all_resume_in_a_new_round() -> None:
    bench = Bench()
    for exchange in bench.exchanges:
        exchange.resume([MINE, THEIRS], 3)
    shares = [Share(THEIRS, 1.0), Share(THEIRS, 2.0)]
    for rank in range(2):
        give(bench, rank, shares[rank])
    bench.settle()
    assert [share.result for share in shares] == [3.0, 3.0]
    assert {exchange.worker.flow.step(THEIRS) for exchange in bench.exchanges} == {5}


def test_pending_rounds_and_missing_ranks_are_known() -> None:
    bench = Bench(3)
    assert bench.exchanges[0].pending() is None
    assert bench.exchanges[0].is_drained
    give(bench, 0, Share(THEIRS))
    bench.settle()
    spec, step = bench.exchanges[0].pending() or pytest.fail("nothing is pending")
    assert (spec.key, step) == (THEIRS, 1)
    assert bench.exchanges[1].missing(THEIRS, 1) == [1, 2]
    assert bench.exchanges[0].blocked_by([1]) == 1
    assert bench.exchanges[0].blocked_by([2]) is None
    assert bench.exchanges[1].blocked_by([2]) == 2
    assert not bench.exchanges[0].is_drained


def test_nobody_leaves_while_work_is_under_way_beside_the_exchange() -> None:
    exchange = Bench().exchanges[0]
    exchange.worker.open_work.begin()
    assert not exchange.is_drained
    exchange.worker.open_work.end()
    assert exchange.is_drained


def test_the_latest_step_is_known_for_messages() -> None:
    bench = Bench(1)
    for _ in range(3):
        give(bench, 0, Share(MINE))
    assert bench.exchanges[0].step == 3


def test_sums_are_traced() -> None:
    bench = Bench(1)
    process_recorder.start()
    give(bench, 0, Share(MINE))
    assert [(type(note), note.key, note.round) for note in process_recorder.stop()] == [  # type: ignore[attr-defined]
        (events.Summed, MINE, 1)
    ]


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (header(Kind.PUSH, key=99), "key 99 is not known here"),
        (header(Kind.PUSH, key=THEIRS), "key 2 is not known here"),
        (header(Kind.PUSH, step=9), "round 9 of key 1 from rank 1: 0 rounds are done"),
        (header(Kind.PUSH, length=15), "a PUSH of 15 bytes of FLOAT32 for key 1, which has 16 of FLOAT32"),
        (header(Kind.PUSH, dtype=DType.INT32), "a PUSH of 16 bytes of INT32 for key 1, which has 16 of FLOAT32"),
        (header(Kind.RESULT, key=99), "a result of round 1 of key 99 that was not expected"),
        (header(Kind.RESULT, key=11), "a result of round 1 of key 11 that was not expected"),
        (header(Kind.RESULT, key=THEIRS, step=2), "a result of round 2 of key 2 that was not expected"),
        (header(Kind.RESULT, key=MINE), "a result of round 1 of key 1 that was not expected"),
        (header(Kind.VALUE, key=THEIRS), "a result of round 1 of key 2 that was not expected"),
        (header(Kind.RESULT, key=THEIRS, length=20), "a RESULT of 20 bytes of FLOAT32 for key 2"),
        (header(Kind.RESULT, key=12), "a result of key 12 that was not wanted"),
    ],
)
def test_a_body_that_makes_no_sense_is_refused_before_it_is_read(frame: Header, words: str) -> None:
    exchange = Bench().exchanges[0]
    exchange.worker.contribute([Share(THEIRS).item, Share(12, wants=False).item])
    with pytest.raises(Unexpected, match=words):
        exchange.sink(1, frame)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (header(Kind.RECEIVED, length=0, received=10**9), "rank 1 reports 1000000000 bytes received"),
        (header(Kind.PUSH, length=0, present=1), "a contribution to key 1 without its bytes"),
        (header(Kind.PUSH, key=99, length=0), "key 99 is not known here"),
        (header(Kind.RESULT, key=THEIRS, length=0, present=1), "a result of key 2 without its bytes"),
        (
            header(Kind.RESULT, key=THEIRS, step=5, length=0),
            "a result of round 5 of key 2 that was not expected",
        ),
        (header(Kind.PULL, length=0), "rank 1 pulls key 1, which has no value"),
    ],
)
def test_an_invalid_frame_is_refused_and_the_round_continues(frame: Header, words: str) -> None:
    bench = Bench()
    share = Share(THEIRS, 1.0)
    give(bench, 0, share)
    with pytest.raises(Unexpected, match=words):
        bench.exchanges[0].handle(1, frame, None)
    give(bench, 1, Share(THEIRS, 2.0))
    bench.settle()
    assert share.result == 3.0


def test_a_result_from_a_rank_that_does_not_own_the_key_is_refused() -> None:
    exchange = Bench(3).exchanges[0]
    exchange.worker.contribute([Share(THEIRS).item])
    with pytest.raises(Unexpected, match="was not expected"):
        exchange.sink(2, header(Kind.RESULT, key=THEIRS, rank=2))


def test_absence_is_read_from_the_flags() -> None:
    exchange = Bench().exchanges[0]
    share = Share(THEIRS)
    exchange.worker.contribute([share.item])
    exchange.handle(1, header(Kind.RESULT, key=THEIRS, length=0, flags=ABSENT), None)
    assert share.answers[0].absent
