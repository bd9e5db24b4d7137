"""Placement: every shard gets its share of the bytes, identically on all ranks."""

from __future__ import annotations

from undertow.engine.core.slicing import Placement


def test_equal_slices_go_round_in_a_circle() -> None:
    placement = Placement(range(3))
    assert [placement.place(100) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_shard_with_the_fewest_bytes_is_next() -> None:
    placement = Placement(range(3))
    assert [placement.place(size) for size in (100, 10, 50, 30, 15, 200)] == [0, 1, 2, 1, 1, 2]


def test_one_shard_owns_everything() -> None:
    placement = Placement(range(1))
    assert {placement.place(size) for size in (1, 2, 3)} == {0}


def test_two_ranks_come_to_the_same_answer() -> None:
    sizes = [17, 4, 99, 4, 4, 1000, 3, 64] * 5
    ours, theirs = Placement(range(4)), Placement(range(4))
    assert [ours.place(size) for size in sizes] == [theirs.place(size) for size in sizes]


def test_slices_go_to_the_owners_of_the_shards() -> None:
    placement = Placement([5, 3], start=1)
    assert [placement.place(10) for _ in range(4)] == [3, 5, 3, 5]
