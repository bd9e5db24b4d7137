"""The size of slices: as given, or chosen to fit the model and the link."""

from __future__ import annotations

import re

import pytest

from undertow.settings import table
from undertow.sizing import Sizes, count_credit_slices

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


RESNET = 102_228_128  # bytes


@pytest.mark.parametrize("shards", [2, 8, 16, 64])
@pytest.mark.parametrize("gbit", [1, 10, 40])
def test_every_shard_has_at_least_four_slices(shards: int, gbit: float) -> None:
    size = Sizes().choose(RESNET, shards=shards, bytes_per_s=gbit * GIGABIT)
    too_fine = gbit * GIGABIT * 0.002 / 8
    assert RESNET / size >= 3.99 * shards or size <= 1.001 * too_fine


def test_a_few_slices_per_shard_are_smaller_than_what_fits_the_link() -> None:
    assert Sizes().choose(RESNET, shards=64, bytes_per_s=10 * GIGABIT) == 399_344  # a 256th, rounded up
    assert Sizes().fit_link(10 * GIGABIT) == 2_500_000


@pytest.mark.parametrize("shards", [96, 128, 256, 1024])
@pytest.mark.parametrize("gbit", [0.1, 1, 10, 100])
def test_balance_alone_never_makes_more_than_about_384_slices(shards: int, gbit: float) -> None:
    size = Sizes().choose(RESNET, shards=shards, bytes_per_s=gbit * GIGABIT)
    asked_for = Sizes().fit_link(gbit * GIGABIT)
    assert RESNET / size <= max(384, RESNET / asked_for)


def test_slices_are_at_most_eight_times_smaller_than_what_fits_the_link() -> None:
    for shards in (16, 64, 256):
        size = Sizes().choose(20_000_000, shards=shards, bytes_per_s=10 * GIGABIT)
        assert size >= min(2_500_000 // 8 - 16, 20_000_000 // shards)


@pytest.mark.parametrize("shards", [4, 16, 64])
def test_a_small_model_on_a_fast_link_has_one_slice_per_shard(shards: int) -> None:
    share = 100_000
    assert Sizes().choose(shards * share, shards=shards, bytes_per_s=10 * GIGABIT) == share


def test_more_shards_never_make_slices_larger() -> None:
    for gbit in (1, 10, 40):
        found = [Sizes().choose(RESNET, shards=2**power, bytes_per_s=gbit * GIGABIT) for power in range(1, 9)]
        assert found == sorted(found, reverse=True)


def test_a_link_fits_two_milliseconds_within_the_limits() -> None:
    assert Sizes().fit_link(GIGABIT) == 250_000
    assert Sizes().fit_link(1000) == 64 << 10
    assert Sizes().fit_link(1e12) == 4 << 20
    assert Sizes(fixed=1040).fit_link(GIGABIT) == 1040
    assert Sizes(smallest=1024, time_s=0.001).fit_link(GIGABIT) == 125_000 // 16 * 16


@pytest.mark.parametrize("total", [0, 1, 999_999, 123_456_789])
@pytest.mark.parametrize("rate", [None, 1.0, 33_333_333.3, 1e12])
def test_every_size_is_whole_and_within_the_limits(total: int, rate: float | None) -> None:
    chosen = Sizes().choose(total, shards=3, bytes_per_s=rate)
    assert chosen % 16 == 0
    assert 64 << 10 <= chosen <= 4 << 20


@pytest.mark.parametrize(("peers", "slices"), [(0, 8), (1, 8), (2, 8), (3, 12), (4, 12), (31, 12)])
def test_the_credit_grows_with_the_peers_between_its_limits(peers: int, slices: int) -> None:
    assert count_credit_slices(peers) == slices


def test_the_table_of_settings_states_the_rule_of_the_credit() -> None:
    [help] = [help for variable, _, help in table() if variable == "UNDERTOW_CREDIT"]
    per_peer, fewest, most = map(int, re.findall(r"\d+", help))
    counts = [count_credit_slices(peers) for peers in range(100)]
    assert (min(counts), max(counts)) == (fewest, most)
    assert all(count == min(max(fewest, per_peer * peers), most) for peers, count in enumerate(counts))
