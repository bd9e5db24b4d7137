"""Cutting tensors under a plan: chunks, credit, priorities and buckets."""

from __future__ import annotations

import pytest

from undertow.engine.core.dtypes import DType
from undertow.engine.core.slicing import TensorSpec
from undertow.plan.plan import Choice, Plan
from undertow.plan.scheme import Scheme
from undertow.plan.slice_plan import SlicePlan, fill_buckets, find_bucket_sizes, make_slice_plan, prioritise
from undertow.sizing import Sizes

WEIGHT = TensorSpec("weight", (100, 100), DType.FLOAT32, 10_000)


def make_plan(scheme: Scheme, *, workers: int = 3, push_bytes: float = 9000.0) -> Plan:
    choice = Choice(
        tensor="weight", shape=(100, 100), scheme=scheme, bytes_out=0.0, push_bytes=push_bytes, alone_s=0.0, reason=""
    )
    return Plan(policy="auto", workers=workers, choices=(choice,), step_s=1.0, compute_s=1.0, alone={})


def make(scheme: Scheme, *, slice_bytes: int = 1000, workers: int = 3) -> SlicePlan:
    return make_slice_plan(make_plan(scheme, workers=workers), slice_bytes, sizes=Sizes(), bytes_per_s=None)


def test_all_of_a_pass_goes_before_the_next_one_and_within_it_the_first_place() -> None:
    order = [prioritise(1, 0), prioritise(1, 5), prioritise(2, 0), prioritise(2, 1_000_000)]
    assert order == sorted(order)
    assert len(set(order)) == 4


def test_a_dense_tensor_has_no_chunks() -> None:
    assert make(Scheme.DENSE).choose_chunking(WEIGHT, least_bytes=64, shards=3) is None
    dense = make_slice_plan(None, 1000, sizes=Sizes(), bytes_per_s=None)
    assert dense.choose_chunking(WEIGHT, least_bytes=64, shards=3) is None


def test_an_all_reduced_tensor_has_no_slices_at_all() -> None:
    chunking = make(Scheme.ALLREDUCE).choose_chunking(WEIGHT, least_bytes=64, shards=3)
    assert chunking is not None
    assert chunking.chunks == 0


@pytest.mark.parametrize(("slice_bytes", "chunks"), [(1000, 5), (4500, 1), (10_000, 1), (4499, 2)])
def test_what_one_worker_sends_to_another_is_cut_into_slices(slice_bytes: int, chunks: int) -> None:
    # 9000 bytes to two others
    chunking = make(Scheme.FACTORS, slice_bytes=slice_bytes).choose_chunking(WEIGHT, least_bytes=64, shards=3)
    assert chunking == (chunks, False)


def test_no_more_chunks_than_keys_were_set_aside() -> None:
    assert make(Scheme.FACTORS).choose_chunking(WEIGHT, least_bytes=20_000, shards=3) == (3, False)
    assert make(Scheme.FACTORS_TO_SHARD).choose_chunking(WEIGHT, least_bytes=20_000, shards=3) == (1, True)


def test_one_worker_alone_divides_by_nothing() -> None:
    assert make(Scheme.FACTORS, workers=1).peer_bytes == {"weight": 9000.0}


@pytest.mark.parametrize(("bytes_per_s", "credited"), [(None, 1000), (1e9, 2_000_000), (1.0, 65536)])
def test_the_credit_counts_slices_that_fit_the_link(bytes_per_s: float | None, credited: int) -> None:
    assert make_slice_plan(None, 1000, sizes=Sizes(), bytes_per_s=bytes_per_s).credited_bytes == credited


def test_the_credit_never_counts_smaller_slices_than_there_are() -> None:
    assert make_slice_plan(None, 1 << 20, sizes=Sizes(), bytes_per_s=1.0).credited_bytes == 1 << 20


def test_the_first_bucket_is_small_and_a_bucket_is_full_with_the_tensor_that_reaches_its_size() -> None:
    sizes = [("a", 6, 0), ("b", 6, 0), ("c", 30, 0), ("d", 1, 0), ("e", 1, 0)]
    assert fill_buckets(sizes, (10, 31)) == [["a", "b"], ["c", "d"], ["e"]]
    assert fill_buckets([], (10, 31)) == []


def test_a_bucket_has_tensors_of_one_kind() -> None:
    assert fill_buckets([("a", 1, 0), ("b", 1, 1), ("c", 1, 1), ("d", 1, 0)], (10, 31)) == [["a"], ["b", "c"], ["d"]]


def test_buckets_follow_the_largest_slice() -> None:
    assert find_bucket_sizes(Sizes()) == (1 << 20, 24 << 20)
