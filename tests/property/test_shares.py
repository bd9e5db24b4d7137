"""Each rank's share of the batches that one process would have taken."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undertow.sync.batches.shares import BatchShare, ShareRule, cut_evenly, stride

BATCHES = st.lists(st.integers(1, 9), max_size=12)
SIZES = st.integers(1, 6)


def make_batches(sizes: list[int]) -> list[list[int]]:
    numbers = itertools.count()
    return [list(itertools.islice(numbers, size)) for size in sizes]


def cut_for_all(sizes: list[int], ranks: int, *, is_split: bool, drops_last: bool = False) -> list[list[BatchShare]]:
    """By rank."""
    return [
        list(ShareRule(rank=rank, size=ranks, is_split=is_split, drops_last=drops_last).divide(make_batches(sizes)))
        for rank in range(ranks)
    ]


@given(BATCHES, SIZES, st.booleans())
def test_every_sample_is_in_one_share_and_weighs_as_much_as_any_other(
    sizes: list[int], ranks: int, is_split: bool
) -> None:
    shares = cut_for_all(sizes, ranks, is_split=is_split)
    seen = []
    for step in zip(*shares, strict=True):  # all ranks make as many steps
        counting = [part for part in step if part.weight]
        samples = [index for part in counting for index in part.indices]
        seen += samples
        for part in counting:
            assert part.weight / len(part.indices) == pytest.approx(ranks / len(samples))
        assert all(part.indices for part in step)
    assert sorted(seen) == list(range(sum(sizes)))


@given(BATCHES, SIZES, st.booleans(), st.booleans())
def test_the_count_is_known_before(sizes: list[int], ranks: int, is_split: bool, drops_last: bool) -> None:
    rule = ShareRule(rank=0, size=ranks, is_split=is_split, drops_last=drops_last)
    assert rule.count(len(sizes)) == len(list(rule.divide(make_batches(sizes))))


def test_a_split_batch_keeps_its_order_over_the_ranks() -> None:
    shares = cut_for_all([5, 3], 2, is_split=True)
    assert shares[0] == [BatchShare([0, 1, 2], 1.2), BatchShare([5, 6], pytest.approx(4 / 3))]
    assert shares[1] == [BatchShare([3, 4], 0.8), BatchShare([7], pytest.approx(2 / 3))]


def test_of_as_many_batches_as_ranks_each_takes_its_own() -> None:
    shares = cut_for_all([2, 2, 2], 2, is_split=False)
    assert shares == [[BatchShare([0, 1], 1.0), BatchShare([4], 1.0)], [BatchShare([2, 3], 1.0), BatchShare([5], 1.0)]]
    assert cut_for_all([2, 2, 2], 2, is_split=False, drops_last=True)[1] == [BatchShare([2, 3], 1.0)]


def test_who_has_no_sample_computes_one_that_counts_for_nothing() -> None:
    assert cut_for_all([2], 3, is_split=True) == [
        [BatchShare([0], 1.5)],
        [BatchShare([1], 1.5)],
        [BatchShare([0], 0.0)],
    ]


@given(st.integers(0, 40), SIZES)
def test_parts_differ_by_one_at_most(count: int, parts: int) -> None:
    cut = cut_evenly(range(count), parts)
    assert [*itertools.chain(*cut)] == list(range(count))
    assert max(map(len, cut)) - min(map(len, cut)) <= 1


def test_a_stream_ends_for_all_at_the_same_time() -> None:
    assert [list(stride(range(8), rank=rank, size=3)) for rank in range(3)] == [[0, 3], [1, 4], [2, 5]]
