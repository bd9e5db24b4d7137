"""The shard's side in a process without a worker: it answers frames of workers in other processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.fake_group import make_shape
from undertow.engine.client.exchange import Exchange
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import Header, Kind, Unexpected
from undertow.engine.core.pool import Pool
from undertow.engine.core.rounds import Array, KeySpec, Op
from undertow.engine.core.slicing import Cut, Placement, Slice, TensorSpec, cut
from undertow.engine.server.gathering import RankBytes
from undertow.engine.server.shard import Answer
from undertow.engine.server.shard_side import ShardSide
from undertow.engine.wire.frame_sender import FrameSender
from undertow.engine.wire.memory import MemoryNetwork

WORKERS = 3
SERVER = WORKERS
GATHERED = KeySpec(90, 0, DType.BYTES, Op.GATHER, SERVER)
PUBLISHED = KeySpec(91, 4, DType.FLOAT32, Op.MEAN, SERVER, is_published=True)


class Server:
    """Process without a worker: links, and the shard's side.  It collects the pieces that it is handed."""

    def __init__(self, rank: int, servers: int, transport: Any) -> None:
        shape = make_shape(WORKERS + servers, rank=rank, dedicated_servers=servers, credit_bytes=64)
        self.sender = FrameSender(shape, transport)
        self.side = ShardSide(shape, self.sender, Pool())
        self.kinds: list[tuple[Kind, int]] = []
        self.pieces: list[tuple[int, int, Sequence[RankBytes]]] = []

    def sink(self, peer: int, header: Header) -> Array:
        return self.side.sink_push(peer, header)

    def arrived(self, peer: int, header: Header, body: Array | None) -> None:
        self.kinds.append((header.kind, peer))
        self.sender.note_arrived(peer, header)
        if header.kind is Kind.PUSH:
            self.side.take_push(peer, header, body)
        elif header.kind is Kind.PULL:
            self.side.take_pull(peer, header)
        self.sender.go_on(peer, header)

    def take_answer(self, answer: Answer) -> None:
        raise AssertionError("no worker is here to be answered")

    def take_gathered(self, key: int, step: int, pieces: Sequence[RankBytes]) -> None:
        self.pieces.append((key, step, pieces))

    def connected(self, peer: int) -> None: ...

    def lost(self, peer: int, reason: str) -> None: ...


class WorkerProcess:
    """Process of a worker that owns nothing."""

    def __init__(self, rank: int, servers: int, transport: Any) -> None:
        self.shape = make_shape(WORKERS + servers, rank=rank, dedicated_servers=servers, credit_bytes=64)
        self.exchange = Exchange(self.shape, transport)
        self.sink = self.exchange.sink
        self.arrived = self.exchange.handle
        self.answers: list[Contribution] = []

    def give(self, key: int, source: Array | None, target: Array | None = None, **options: Any) -> None:
        present = int(source is not None)
        item = Contribution(key, source, target, present, self.answers.append, **options)
        self.exchange.worker.contribute([item])

    def connected(self, peer: int) -> None: ...

    def lost(self, peer: int, reason: str) -> None: ...


class Star:
    """Three workers, and servers that train nothing; all frames go through memory."""

    def __init__(self, slices: Sequence[Slice] = (), servers: int = 1) -> None:
        self.network = MemoryNetwork(WORKERS + servers)
        transports = self.network.transports
        self.workers = [WorkerProcess(rank, servers, transports[rank]) for rank in range(WORKERS)]
        self.servers = [Server(WORKERS + number, servers, transports[WORKERS + number]) for number in range(servers)]
        self.learn(slices)
        self.network.connect([*self.workers, *self.servers])

    def learn(self, slices: Sequence[Slice]) -> None:
        for worker in self.workers:
            worker.exchange.learn(slices)
        for server in self.servers:
            server.side.learn([item.spec for item in slices])

    def settle(self) -> None:
        while links := self.network.links_with_frames():
            self.network.deliver(*links[0])


def one_key(op: Op = Op.MEAN, *, keep: bool = False) -> list[Slice]:
    return [Slice(KeySpec(5, 4, DType.FLOAT32, op, SERVER, keep), ())]


def numbers(value: float) -> Array:
    return np.full(4, value, np.float32)


def test_the_mean_of_all_workers_comes_back_to_each() -> None:
    star = Star(one_key())
    arrays = [numbers(value) for value in (1.0, 2.0, 6.0)]
    for worker, array in zip(star.workers, arrays, strict=True):
        worker.give(5, array, array)
    star.settle()
    assert [array.tolist() for array in arrays] == [[3.0] * 4] * WORKERS
    assert [len(worker.answers) for worker in star.workers] == [1] * WORKERS
    assert [peer for kind, peer in star.servers[0].kinds if kind is Kind.PUSH] == [0, 1, 2]


def test_tensors_over_two_servers_have_the_bits_that_workers_with_shards_of_their_own_make() -> None:
    tensors = [TensorSpec("w", (257,), DType.FLOAT32, 257), TensorSpec("v", (40, 4), DType.FLOAT32, 160)]
    shape = make_shape(WORKERS + 2, dedicated_servers=2)
    slices = cut(tensors, Cut(0, 64), op=Op.MEAN, placement=Placement(shape.owners))
    assert {item.spec.owner for item in slices} == {3, 4}
    star, rng = Star(slices, servers=2), np.random.default_rng(1)
    given = [[rng.standard_normal(item.spec.elements).astype(np.float32) for item in slices] for _ in range(WORKERS)]
    expected = [((given[0][i] + given[1][i]) + given[2][i]) / np.float32(WORKERS) for i in range(len(slices))]
    for worker, arrays in zip(star.workers, given, strict=True):
        for item, array in zip(slices, arrays, strict=True):
            worker.give(item.spec.key, array, array)
    star.settle()
    for arrays in given:
        assert all(np.array_equal(array, mean) for array, mean in zip(arrays, expected, strict=True))


def test_a_worker_pulls_what_the_server_holds() -> None:
    star, target = Star(one_key(Op.SUM, keep=True)), numbers(0.0)
    for worker in star.workers:
        worker.give(5, numbers(2.0))
    star.settle()
    star.workers[1].give(5, None, target, is_pull=True)
    star.settle()
    assert target.tolist() == [6.0] * 4


def test_a_server_continues_without_a_worker_that_ran_out_of_input_and_names_late_ones() -> None:
    star, array = Star(one_key()), numbers(1.0)
    server = star.servers[0]
    star.workers[0].give(5, array, array)
    star.settle()
    assert server.side.missing(5, 1) == [1, 2]
    assert server.side.blocked_by([2]) == 2
    star.workers[1].give(5, numbers(3.0))
    star.settle()
    server.side.join(2, [5], 0, divide_by_active=True)
    server.sender.pump()
    star.settle()
    assert array.tolist() == [2.0] * 4
    assert star.workers[0].answers[0].absent


def test_a_server_makes_use_of_gathered_pieces_and_publishes_what_it_makes_of_them() -> None:
    star = Star([Slice(GATHERED, ()), Slice(PUBLISHED, ())])
    server = star.servers[0]
    server.side.worker = server
    targets = [numbers(0.0) for _ in star.workers]
    for rank, worker in enumerate(star.workers):
        worker.give(PUBLISHED.key, None, targets[rank])
        worker.give(GATHERED.key, np.full(rank + 1, rank, np.uint8))
    star.settle()
    [(key, step, pieces)] = server.pieces
    assert (key, step) == (GATHERED.key, 1)
    assert [piece.array.tolist() for piece in pieces if piece.array is not None] == [[0], [1, 1], [2, 2, 2]]
    assert [[item.key for item in worker.answers] for worker in star.workers] == [[GATHERED.key]] * WORKERS
    server.side.contribute(Contribution(PUBLISHED.key, numbers(7.0), None, 1, lambda item: None, step=1), PUBLISHED)
    server.sender.pump()
    star.settle()
    assert [target.tolist() for target in targets] == [[7.0] * 4] * WORKERS


def test_forgotten_keys_are_refused() -> None:
    star = Star(one_key())
    side = star.servers[0].side
    side.forget(range(5, 6))
    with pytest.raises(Unexpected, match="key 5 is not known here"):
        side.sink_push(0, Header(Kind.PUSH, 5, 1, length=16, dtype=DType.FLOAT32))


def test_a_worker_owns_nothing_where_servers_do() -> None:
    star = Star(one_key())
    with pytest.raises(Unexpected, match="key 5 is not known here"):
        star.workers[0].exchange.sink(1, Header(Kind.PUSH, 5, 1, rank=1, length=16, dtype=DType.FLOAT32))
