"""A new layout reuses keys: a gathered key can be summed afterwards, and a summed key gathered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from undertow.engine.client.exchange import Exchange
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import Kind
from undertow.engine.core.rounds import EVERYONE, KeySpec, Op
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Slice, TensorRange
from undertow.engine.wire.memory import MemoryNetwork
from undertow.sizing import Sizes

SIZES = Sizes(smallest=1024, largest=16384)
KEY = 7
GATHERED = Slice(KeySpec(KEY, 0, DType.BYTES, Op.GATHER, EVERYONE), (TensorRange(0, 0, 0, 0),))
SUMMED = Slice(KeySpec(KEY, 4, DType.FLOAT32, Op.SUM, 1), (TensorRange(0, 0, 4, 0),))


class Pair:
    """Two workers, without threads."""

    def __init__(self) -> None:
        self.network = MemoryNetwork(2)
        self.exchanges = [
            Exchange(
                Shape(
                    rank=rank,
                    hosts=["host"] * 2,
                    job=1,
                    sizes=SIZES,
                    credit_bytes=1 << 16,
                    silence_timeout_s=10.0,
                    stall_timeout_s=10.0,
                ),
                self.network.transports[rank],
            )
            for rank in range(2)
        ]
        self.network.connect([_Receiver(exchange) for exchange in self.exchanges])

    def learn(self, item: Slice) -> None:
        for exchange in self.exchanges:
            exchange.learn([item])

    def run(self, values: Sequence[float], *, is_gathered: bool) -> list[Contribution]:
        """One round of the key.  What was answered, rank by rank."""
        answered: list[Contribution] = []
        given = []
        for rank, value in enumerate(values):
            source = np.full(4 + rank if is_gathered else 4, value, np.float32)
            target = None if is_gathered else np.zeros(4, np.float32)
            sent = source.view(np.uint8) if is_gathered else source
            given.append(Contribution(KEY, sent, target, 1, answered.append))
            self.exchanges[rank].worker.contribute([given[-1]])
        while links := self.network.links_with_frames():
            self.network.deliver(*links[0])
        assert len(answered) == 2
        return given


class _Receiver:
    def __init__(self, exchange: Exchange) -> None:
        self.sink = exchange.sink
        self.arrived = exchange.handle

    def connected(self, peer: int) -> None: ...

    def lost(self, peer: int, reason: str) -> None: ...


def test_a_key_may_be_gathered_then_summed_then_gathered_again() -> None:
    pair = Pair()
    for turn in range(3):
        pair.learn(GATHERED)
        for value in (1.0, 2.0 + turn):
            for one in pair.run([value, 10 * value], is_gathered=True):
                pieces = [piece.array.view(np.float32).tolist() for piece in one.gathered]
                assert pieces == [[value] * 4, [10 * value] * 5]
        pair.learn(SUMMED)
        for value in (3.0, 4.0 + turn):
            for one in pair.run([value, 10 * value], is_gathered=False):
                assert one.target is not None
                assert one.target.tolist() == [11 * value] * 4


def test_a_key_that_is_gathered_is_pushed_to_everybody_and_needs_no_answer() -> None:
    pair = Pair()
    pair.learn(GATHERED)
    given = [Contribution(KEY, np.zeros(3, np.uint8), None, 1, lambda one: None) for _ in range(2)]
    for exchange, contribution in zip(pair.exchanges, given, strict=True):
        exchange.worker.contribute([contribution])
    kinds = []
    while links := pair.network.links_with_frames():
        header = pair.network.deliver(*links[0])
        assert header is not None
        kinds.append(header.kind)
    assert [kind for kind in kinds if kind is not Kind.RECEIVED] == [Kind.PUSH] * 2
