"""Discarded keys are forgotten once every rank has discarded them, in any order, and not earlier."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from undertow.engine.client.discarding import Discarding, discard_with
from undertow.engine.client.exchange import Exchange
from undertow.engine.coordinator.messages import Discarded
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import Unexpected
from undertow.engine.core.pool import Pool
from undertow.engine.core.rounds import KeySpec, Op
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Slice
from undertow.engine.wire.memory import MemoryNetwork
from undertow.sizing import Sizes

KEYS = range(10, 16)
USED = [10, 11, 14]


class Bench:
    """Rank 0 of two, with what it tells the other one."""

    def __init__(self) -> None:
        network = MemoryNetwork(2)
        shape = Shape(
            rank=0,
            hosts=["host"] * 2,
            job=7,
            sizes=Sizes(fixed=16),
            credit_bytes=64,
            silence_timeout_s=10.0,
            stall_timeout_s=10.0,
        )
        self.memory = Pool()
        self.exchange = Exchange(shape, network.transports[0], memory=self.memory)
        self.exchange.learn([Slice(KeySpec(key, 4, DType.FLOAT32, Op.SUM, key % 2), ()) for key in USED])
        self.told: list[Discarded] = []
        self.discarding = Discarding(0, 2, self.exchange, self.told.append)

    def contribute(self, key: int) -> None:
        self.exchange.worker.contribute([Contribution(key, np.ones(4, np.float32), None, 1, lambda item: None)])

    def known(self) -> list[int]:
        return [key for key in KEYS if self.exchange.knows(key)]


def test_other_ranks_are_informed_of_discarded_keys_and_forgotten_ones_leave_nothing() -> None:
    bench = Bench()
    bench.discarding.begin(KEYS)
    assert (bench.told, bench.known()) == ([Discarded(10)], USED)
    bench.discarding.discard_on(1, 10)
    assert bench.known() == []
    with pytest.raises(Unexpected, match="key 10 is not known here"):
        bench.exchange.shard._shard.spec(10)


def test_a_rank_that_is_the_last_to_discard_keys_forgets_them_at_once() -> None:
    bench = Bench()
    bench.discarding.discard_on(1, 10)
    bench.discarding.begin(KEYS)
    assert (bench.told, bench.known()) == ([Discarded(10)], [])


def test_memory_is_freed_with_the_keys_of_a_table() -> None:
    bench = Bench()
    bench.memory.give(memory := bench.memory.take(16))
    bench.discarding.begin_with_table(KEYS)
    bench.memory.give(taken := bench.memory.take(16))
    assert taken is memory  # another rank still uses the keys
    bench.discarding.discard_on(1, 10)
    assert bench.memory.take(16) is not memory


def test_memory_is_kept_when_keys_of_calls_are_dropped() -> None:
    """A model that trains beside them would have to ask the system for it anew."""
    bench = Bench()
    bench.memory.give(memory := bench.memory.take(16))
    bench.discarding.begin(KEYS)
    bench.discarding.discard_on(1, 10)
    assert bench.known() == []
    assert bench.memory.take(16) is memory


def test_keys_with_a_contribution_under_way_are_discarded_later() -> None:
    bench = Bench()
    bench.contribute(11)
    bench.discarding.begin(KEYS)
    assert bench.told == []
    bench.exchange.worker.flow.answer(11)
    bench.discarding.check()
    assert bench.told == [Discarded(10)]


def test_keys_wait_for_work_beside_the_engine_that_may_contribute_to_them() -> None:
    bench = Bench()
    bench.exchange.worker.open_work.begin()
    bench.discarding.begin(KEYS)
    assert bench.told == []
    bench.exchange.worker.open_work.end()
    bench.discarding.check()
    assert bench.told == [Discarded(10)]


@pytest.mark.parametrize("first", [9, 15, 4711])
def test_unknown_keys_cannot_be_discarded(first: int) -> None:
    with pytest.raises(Unexpected, match="which are not in use"):
        Bench().discarding.discard_on(1, first)


def test_the_same_rank_cannot_discard_keys_twice() -> None:
    bench = Bench()
    bench.discarding.discard_on(1, 10)
    with pytest.raises(Unexpected, match="rank 1 discards the keys starting at 10, which are not in use"):
        bench.discarding.discard_on(1, 10)


def test_keys_are_discarded_when_their_owner_is_collected() -> None:
    class Owner:
        pass

    class Group:
        discarded: range | None = None

        def discard(self, keys: range) -> None:
            self.discarded = keys

    owner, group = Owner(), Group()
    discard_with(owner, group.discard, KEYS)
    assert group.discarded is None
    del owner
    gc.collect()
    assert group.discarded == KEYS
