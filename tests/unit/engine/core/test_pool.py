"""The pool: memory is reused, and never more is kept than is worth keeping."""

from __future__ import annotations

import numpy as np
import pytest

from undertow.engine.core import pool as pool_module
from undertow.engine.core.pool import Pool


def test_memory_has_the_requested_size() -> None:
    memory = Pool().take(24)
    assert memory.nbytes == 24
    assert memory.dtype == np.uint8


def test_what_was_given_back_is_taken_again() -> None:
    pool = Pool()
    memory = pool.take(64)
    pool.give(memory)
    assert pool.take(64) is memory
    assert pool.take(64) is not memory


def test_a_view_of_another_type_gives_back_the_whole() -> None:
    pool = Pool()
    memory = pool.take(64)
    pool.give(memory.view(np.float32))
    assert pool.take(64) is memory


def test_another_size_is_never_handed_out() -> None:
    pool = Pool()
    pool.give(pool.take(64))
    assert pool.take(32).nbytes == 32


def test_no_more_than_the_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MOST_FREE_BYTES", 100)
    pool = Pool()
    first, second = pool.take(64), pool.take(64)
    pool.give(first)
    pool.give(second)
    assert pool.take(64) is first
    assert pool.take(64) is not second


def test_a_cleared_pool_holds_nothing() -> None:
    pool = Pool()
    memory = pool.take(64)
    pool.give(memory)
    pool.clear()
    assert pool.take(64) is not memory


def test_memory_of_unused_sizes_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MOST_FREE_BYTES", 100)
    monkeypatch.setattr(pool_module, "MOST_REFUSED_BYTES", 600)
    pool = Pool()
    pool.give(pool.take(90))
    taken = [pool.take(64) for _ in range(10)]
    for memory in taken[:9]:
        pool.give(memory)
    assert list(pool._free) == [90]
    pool.give(taken[9])  # with it 640 bytes had no room
    assert not pool._free
    pool.give(taken[0])
    assert pool.take(64) is taken[0]


def test_a_size_that_was_requested_once_leaves_nothing_behind() -> None:
    pool = Pool()
    for size_bytes in range(1, 100):
        pool.take(size_bytes)
    assert not pool._free
