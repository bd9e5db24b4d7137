"""The exchange: slices out, results in their place, credit back; nonsense refused with words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from undertow import trace
from undertow.core import frames
from undertow.core.dtypes import DType
from undertow.core.flow import Contribution
from undertow.core.frames import ABSENT, WANTS, Header, Kind
from undertow.core.rounds import Array, KeySpec, Op
from undertow.plan.slicing import Part, Slice
from undertow.runtime.exchange import Exchange
from undertow.runtime.shape import Shape
from undertow.store.shard import Unexpected
from undertow.wire.memory import MemoryNetwork

SLICE_BYTES = 16
MINE, THEIRS = 1, 2  # keys owned by rank 0 and rank 1


def slices(*, op: Op = Op.SUM, keep: bool = False, dtype: DType = DType.FLOAT32) -> list[Slice]:
    elements = SLICE_BYTES // dtype.numpy.itemsize
    return [
        Slice(KeySpec(key, elements, dtype, op, shard, keep), (Part(0, 0, elements, 0),))
        for key, shard in ((MINE, 0), (THEIRS, 1), (11, 1), (12, 1), (13, 1))
    ]


class Bench:
    """Exchanges of some ranks; frames move when `deliver` or `settle` is called."""

    def __init__(self, size: int = 2, *, credit_slices: int = 4, **kind: Any) -> None:
        self.network = MemoryNetwork(size)
        self.exchanges = [Exchange(self.shape(rank, size, credit_slices), self.network.transports[rank]) for rank in range(size)]
        self.network.connect([_Receiver(exchange) for exchange in self.exchanges])
        self.frames: list[tuple[int, int, Header]] = []
        for exchange in self.exchanges:
            exchange.learn(slices(**kind))

    @staticmethod
    def shape(rank: int, size: int, credit_slices: int) -> Shape:
        return Shape(
            rank=rank,
            hosts=["host"] * size,
            job=7,
            slice_bytes=SLICE_BYTES,
            credit_bytes=credit_slices * SLICE_BYTES,
            silence_timeout_s=10.0,
            stall_timeout_s=10.0,
        )

    def settle(self) -> None:
        while links := self.network.links_with_frames():
            self.deliver(*links[0])

    def deliver(self, sender: int, receiver: int) -> Header:
        header = self.network.deliver(sender, receiver)
        assert header is not None
        self.frames.append((sender, receiver, header))
        return header


class _Receiver:
    def __init__(self, exchange: Exchange) -> None:
        self.sink = exchange.sink
        self.arrived = exchange.handle

    def connected(self, peer: int) -> None: ...

    def lost(self, peer: int, reason: str) -> None: ...


def numbers(value: float, dtype: DType = DType.FLOAT32) -> Array:
    return np.full(SLICE_BYTES // dtype.numpy.itemsize, value, dtype.numpy)


def part(key: int, value: float | None = 1.0, **options: Any) -> Contribution:
    """A contribution whose result lands in its own array; `done` is filled by its answer."""
    array = numbers(0.0 if value is None else value)
    source = None if value is None else array
    done: list[Contribution] = []
    made = Contribution(key, source, array, int(value is not None), done.append, **options)
    made.done = done  # type: ignore[attr-defined]
    return made


@pytest.fixture(autouse=True)
def _open_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tests hang their own list on a contribution."""


def header(kind: Kind, key: int = MINE, step: int = 1, **fields: Any) -> Header:
    defaults = {"rank": 1, "length": SLICE_BYTES, "dtype": DType.FLOAT32, "job": 7}
    return Header(kind, key, step, **{**defaults, **fields})
