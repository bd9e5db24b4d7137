"""The worker's side of rounds: where contributions go, where results land, and which frames make no sense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.fake_group import make_shape
from undertow.engine.client.worker_side import WorkerSide
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import ABSENT, WANTS, Header, Kind, Unexpected
from undertow.engine.core.pool import Pool
from undertow.engine.core.rounds import EVERYONE, Array, KeySpec, Op
from undertow.engine.server.gathering import RankBytes
from undertow.engine.server.shard import Answer
from undertow.tracing.recorder import Recorder

OURS, THEIRS, PUBLISHED, GATHERED, FOR_ONE = range(1, 6)
SIZE_BYTES = 16
SPECS = [
    KeySpec(OURS, 4, DType.FLOAT32, Op.SUM, 1),
    KeySpec(THEIRS, 4, DType.FLOAT32, Op.SUM, 0),
    KeySpec(PUBLISHED, 4, DType.FLOAT32, Op.COPY, 0, is_published=True),
    KeySpec(GATHERED, 0, DType.BYTES, Op.GATHER, EVERYONE),
    KeySpec(FOR_ONE, 0, DType.BYTES, Op.GATHER, 2),
]


class FakeSender:
    """A send queue that keeps what is queued."""

    def __init__(self) -> None:
        self.queued: list[tuple[int, Header, Any, int]] = []
        self.pumps = 0
        self.largest_bytes = 0

    def make_frame(self, peer: int, header: Header, body: Any) -> tuple[int, Header, Any]:
        return peer, header, body

    def queue(self, frames: Sequence[tuple[int, Header, Any]], priority: int) -> None:
        self.queued += [(*frame, priority) for frame in frames]

    def pump(self) -> None:
        self.pumps += 1

    def expect_sizes(self, specs: Sequence[KeySpec]) -> None:
        self.expect_size(max(spec.size_bytes for spec in specs))

    def expect_size(self, size_bytes: int) -> None:
        self.largest_bytes = max(self.largest_bytes, size_bytes)

    @property
    def sent(self) -> list[tuple[int, Kind, int, int]]:
        return [(peer, header.kind, header.key, header.step) for peer, header, _, _ in self.queued]


class FakeShard:
    def __init__(self) -> None:
        self.contributed: list[tuple[int, int]] = []

    def contribute(self, item: Contribution, spec: KeySpec) -> None:
        self.contributed.append((item.key, item.step))


class Bench:
    """The side of rank 1 of three."""

    def __init__(self) -> None:
        self.sender: Any = FakeSender()
        self.shard: Any = FakeShard()
        self.recorder = Recorder(lambda: 5.0)
        self.pool = Pool()
        self.answers: list[Contribution] = []
        self.side = WorkerSide(make_shape(3, rank=1), self.sender, self.shard, self.pool, self.recorder)
        self.side.learn(SPECS)

    def give(self, key: int, value: float = 1.0, *, wants: bool = True, **options: Any) -> Array:
        """Contribute this value; return the memory that receives the result."""
        array = np.full(4, value, np.float32)
        source, target = array.view(np.uint8) if key >= GATHERED else array, array if wants else None
        self.side.contribute([Contribution(key, source, target, 1, self.answers.append, **options)])
        return array


@pytest.fixture
def bench() -> Bench:
    return Bench()


def result(key: int = THEIRS, step: int = 1, *, length: int = SIZE_BYTES, **fields: Any) -> Header:
    kind = fields.pop("kind", Kind.RESULT)
    return Header(kind, key, step, **{"present": 1, "length": length, "dtype": DType.FLOAT32, **fields})


def test_a_contribution_goes_to_the_owner_of_its_key(bench: Bench) -> None:
    bench.give(THEIRS, priority=7)
    [(peer, header, body, priority)] = bench.sender.queued
    assert (peer, header.kind, header.step, header.rank, header.length, priority) == (0, Kind.PUSH, 1, 1, 16, 7)
    assert header.flags == WANTS
    assert bytes(body.data) == np.full(4, 1.0, np.float32).tobytes()
    assert bench.sender.pumps == 1


def test_without_memory_for_a_result_none_is_requested(bench: Bench) -> None:
    bench.give(THEIRS, wants=False)
    assert bench.sender.queued[0][1].flags == 0
    with pytest.raises(Unexpected, match="a result of key 2 that was not wanted"):
        bench.side.sink_result(0, result())


def test_contributions_to_the_local_shard_are_not_sent(bench: Bench) -> None:
    bench.give(OURS)
    assert bench.shard.contributed == [(OURS, 1)]
    assert bench.sender.queued == []


def test_the_next_round_of_a_key_begins_with_the_result_of_the_last_one(bench: Bench) -> None:
    target = bench.give(THEIRS)
    bench.give(THEIRS)
    assert [step for _, _, _, step in bench.sender.sent] == [1]
    bench.side.sink_result(0, result())[:] = np.full(4, 3.0, np.float32).view(np.uint8)
    bench.side.take_result(0, result(flags=ABSENT))
    assert [step for _, _, _, step in bench.sender.sent] == [1, 2]
    assert target.tolist() == [3.0] * 4
    assert [(one.step, one.absent) for one in bench.answers] == [(1, True)]
    assert bench.side.step == 2


def test_a_pull_asks_for_a_value_and_takes_no_result(bench: Bench) -> None:
    target = np.zeros(4, np.float32)
    bench.side.contribute([Contribution(THEIRS, None, target, 0, bench.answers.append, is_pull=True)])
    assert bench.sender.sent == [(0, Kind.PULL, THEIRS, 0)]  # a part of no round
    with pytest.raises(Unexpected, match="was not expected"):
        bench.side.take_result(0, result(step=0))
    bench.side.take_result(0, result(step=0, kind=Kind.VALUE))
    assert len(bench.answers) == 1


@pytest.mark.parametrize(
    ("peer", "header", "words"),
    [
        (0, result(step=2), "a result of round 2 of key 2 that was not expected"),
        (2, result(), "a result of round 1 of key 2 that was not expected"),
        (0, result(kind=Kind.VALUE), "a result of round 1 of key 2 that was not expected"),
        (0, result(99), "a result of round 1 of key 99 that was not expected"),
        (0, result(length=0), "a result of key 2 without its bytes"),
    ],
    ids=["another round", "no owner", "not pulled", "unknown key", "no bytes"],
)
def test_an_invalid_result_is_refused_and_completes_nothing(
    bench: Bench, peer: int, header: Header, words: str
) -> None:
    bench.give(THEIRS)
    for take in (bench.side.sink_result, bench.side.take_result):
        with pytest.raises(Unexpected, match=words):
            take(peer, header)
    assert bench.answers == []


def test_published_values_are_awaited_without_a_request(bench: Bench) -> None:
    bench.give(PUBLISHED)
    assert bench.sender.queued == []
    bench.side.take_result(0, result(PUBLISHED))
    assert len(bench.answers) == 1


def test_an_owner_that_had_no_value_answers_without_bytes(bench: Bench) -> None:
    bench.give(THEIRS)
    bench.side.take_result(0, result(length=0, present=0))
    assert [one.present for one in bench.answers] == [0]


def test_gathered_contributions_go_to_all_workers_and_are_complete_in_rank_order(bench: Bench) -> None:
    bench.sender.largest_bytes = 0
    bench.give(GATHERED, 8.0)
    assert [peer for peer, *_ in bench.sender.sent] == [2, 0]
    assert bench.sender.largest_bytes == SIZE_BYTES
    for peer in (2, 0):
        header = result(GATHERED, length=3, present=peer)
        body = bench.side.sink_push(peer, header)
        body[:] = peer
        assert bench.answers == []
        bench.side.take_push(peer, header, body)
        if peer == 2:
            assert bench.answers == []
    [answer] = bench.answers
    assert [each.present for each in answer.gathered] == [0, 1, 2]
    assert [each.array.tolist()[:1] for each in answer.gathered] == [[0], [0], [2]]


def test_contributions_gathered_for_one_worker_go_only_to_it(bench: Bench) -> None:
    bench.give(FOR_ONE)
    assert bench.sender.sent == [(2, Kind.PUSH, FOR_ONE, 1)]
    assert bench.answers == []


def test_memory_of_gathered_bytes_is_reused_once_released(bench: Bench) -> None:
    memory = bench.side.sink_push(0, result(GATHERED, length=64))
    bench.side.release([RankBytes(memory, 1), RankBytes(None, 0)])
    assert np.shares_memory(bench.side.sink_push(0, result(GATHERED, length=64)), memory)


def test_an_answer_of_the_shard_in_this_process_is_copied_into_the_workers_memory(bench: Bench) -> None:
    target = bench.give(OURS)
    bench.side.take_answer(Answer(1, OURS, 1, 1, 2, np.full(4, 5.0, np.float32)))
    assert target.tolist() == [5.0] * 4
    assert bench.answers[0].absent


def test_keys_that_are_registered_again_begin_with_their_first_round(bench: Bench) -> None:
    bench.give(THEIRS)
    bench.side.take_result(0, result())
    bench.side.forget(range(GATHERED, GATHERED + 1))
    assert GATHERED not in bench.side.gathering.keys
    bench.side.learn(SPECS)
    bench.give(THEIRS)
    assert [step for _, _, _, step in bench.sender.sent] == [1, 1]
    assert GATHERED in bench.side.gathering.keys
