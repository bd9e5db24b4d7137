"""How large slices are: as given, or to fit model and link."""

from __future__ import annotations

import pytest

from undertow.plan.sizing import Sizes

GIGABIT = 125e6  # bytes per second
LARGE = 10**9


def test_a_given_size_is_taken_whatever_else_is_known() -> None:
    sizes = Sizes(fixed=1040)
    assert sizes.start == 1040
    assert sizes.choose(10, shards=4) == sizes.choose(LARGE, shards=2, bytes_per_s=GIGABIT) == 1040


def test_before_anything_is_measured_it_is_a_quarter_of_the_largest() -> None:
    assert Sizes().choose(LARGE, shards=4) == 1 << 20
    assert Sizes(largest=1 << 17, smallest=1024).choose(LARGE, shards=4) == 1 << 15


@pytest.mark.parametrize(("gbit", "size"), [(0.1, 64 << 10), (1, 250_000), (10, 2_500_000), (100, 4 << 20)])
def test_a_slice_takes_two_milliseconds_of_the_link(gbit: float, size: int) -> None:
    assert Sizes().choose(LARGE, shards=4, bytes_per_s=gbit * GIGABIT) == size


@pytest.mark.parametrize("rate", [None, 10 * GIGABIT])
def test_a_small_model_gives_every_shard_a_share(rate: float | None) -> None:
    assert Sizes().choose(400_000, shards=4, bytes_per_s=rate) == 100_000
    assert Sizes().choose(400_001, shards=4, bytes_per_s=rate) == 100_016
    assert Sizes().choose(10, shards=4, bytes_per_s=rate) == 64 << 10


@pytest.mark.parametrize("total", [0, 1, 999_999, 123_456_789])
@pytest.mark.parametrize("rate", [None, 1.0, 33_333_333.3, 1e12])
def test_every_size_is_whole_and_within_the_limits(total: int, rate: float | None) -> None:
    chosen = Sizes().choose(total, shards=3, bytes_per_s=rate)
    assert chosen % 16 == 0
    assert 64 << 10 <= chosen <= 4 << 20
