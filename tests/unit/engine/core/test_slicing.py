"""Slicing: every element exactly once, in slices of similar size."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import (
    FUSED_SHARE,
    MAX_FUSED_TENSORS,
    Chunking,
    Cut,
    Placement,
    Slice,
    TensorSpec,
    cut,
    find_shards,
)

SLICE_BYTES = 1024
FUSE_BYTES = SLICE_BYTES // FUSED_SHARE


def tensor(elements: int, dtype: DType = DType.FLOAT32, name: str = "t") -> TensorSpec:
    return TensorSpec(name, (elements,), dtype, elements)


def slices_of(tensors: Sequence[TensorSpec], slice_bytes: int = SLICE_BYTES, *, shards: int = 4) -> list[Slice]:
    return cut(tensors, Cut(100, slice_bytes), op=Op.MEAN, keep=True, placement=Placement(range(shards)))


def covered(tensors: Sequence[TensorSpec], slices: Sequence[Slice]) -> bool:
    """Each tensor's parts, in order of their offsets, are exactly the tensor."""
    ends = [0] * len(tensors)
    for item in slices:
        at = 0
        for part in item.ranges:
            if part.offset != ends[part.tensor] or part.at != at or not part.elements:
                return False
            ends[part.tensor] += part.elements
            at += part.elements
        if at != item.spec.elements:
            return False
    return ends == [each.elements for each in tensors]


def test_a_large_tensor_is_cut_into_slices_of_the_wanted_size() -> None:
    slices = slices_of([tensor(600)])
    assert [item.spec.elements for item in slices] == [256, 256, 88]
    assert [item.ranges[0].offset for item in slices] == [0, 256, 512]
    assert not any(item.is_fused for item in slices)


def test_a_tensor_of_exactly_one_slice_is_one_slice() -> None:
    assert [item.spec.elements for item in slices_of([tensor(256)])] == [256]


def test_keys_are_consecutive_and_slices_have_the_given_options() -> None:
    slices = slices_of([tensor(600), tensor(3)])
    assert [item.spec.key for item in slices] == [100, 101, 102, 103]
    assert {(item.spec.op, item.spec.keep, item.spec.dtype) for item in slices} == {(Op.MEAN, True, DType.FLOAT32)}
    assert [item.spec.owner for item in slices] == [0, 1, 2, 3]


def test_tiny_neighbours_are_fused_up_to_their_share_of_a_slice() -> None:
    tensors = [tensor(16) for _ in range(5)]
    slices = slices_of(tensors)
    assert [len(item.ranges) for item in slices] == [4, 1]
    assert slices[0].spec.size_bytes == FUSE_BYTES
    assert [part.at for part in slices[0].ranges] == [0, 16, 32, 48]
    assert covered(tensors, slices)


def test_a_fused_slice_has_no_more_tensors_than_a_frame_has_bits() -> None:
    tensors = [tensor(1) for _ in range(MAX_FUSED_TENSORS + 1)]
    assert [len(item.ranges) for item in slices_of(tensors, 1 << 20)] == [MAX_FUSED_TENSORS, 1]


def test_only_tensors_of_one_type_are_fused() -> None:
    tensors = [tensor(2), tensor(2, DType.FLOAT64), tensor(2, DType.FLOAT64), tensor(2)]
    slices = slices_of(tensors)
    assert [(item.spec.dtype, len(item.ranges)) for item in slices] == [
        (DType.FLOAT32, 1),
        (DType.FLOAT64, 2),
        (DType.FLOAT32, 1),
    ]


def test_tiny_tensors_are_fused_whatever_large_ones_are_between_them() -> None:
    tensors = [tensor(2), tensor(600), tensor(2), tensor(2)]
    slices = slices_of(tensors)
    assert [[part.tensor for part in item.ranges] for item in slices] == [[1], [1], [1], [0, 2, 3]]
    assert covered(tensors, slices)


@pytest.mark.parametrize("tensors", [[], [tensor(0)], [tensor(0), tensor(0, DType.FLOAT64)]])
def test_without_elements_there_is_nothing_to_send(tensors: list[TensorSpec]) -> None:
    assert slices_of(tensors) == []


def test_an_empty_tensor_between_others_does_no_harm() -> None:
    tensors = [tensor(2), tensor(0), tensor(2), tensor(0, DType.INT32), tensor(900), tensor(0)]
    assert covered(tensors, slices_of(tensors))


def test_500_tiny_tensors_become_a_few_slices() -> None:
    tensors = [tensor(10, name=f"t{number}") for number in range(500)]
    slices = slices_of(tensors, 1 << 20)
    assert len(slices) == 8
    assert covered(tensors, slices)


def test_one_tensor_of_500_mb_is_spread_evenly_over_the_shards() -> None:
    tensors = [tensor(125_000_000)]
    slices = slices_of(tensors, 1 << 20)
    assert len(slices) == 477
    assert covered(tensors, slices)
    load = [sum(item.spec.size_bytes for item in slices if item.spec.owner == shard) for shard in range(4)]
    assert max(load) - min(load) <= 1 << 20
    assert max(item.spec.size_bytes for item in slices) == 1 << 20


@pytest.mark.parametrize("dtype", list(DType))
def test_no_slice_is_larger_than_wanted_whatever_the_type(dtype: DType) -> None:
    tensors = [tensor(elements, dtype) for elements in (1, 5000, 7, 64, 65, 1024)]
    slices = slices_of(tensors)
    assert max(item.spec.size_bytes for item in slices) <= SLICE_BYTES
    assert covered(tensors, slices)


def test_all_ranks_cut_alike() -> None:
    tensors = [tensor(elements) for elements in (3, 700, 12, 12, 5, 4000)]
    assert slices_of(tensors) == slices_of(tensors)


def test_shards_are_found_with_their_factors_and_the_slices_of_their_rows() -> None:
    height, depth, owners = 3, 1024, [4, 5, 6, 7]  # more shards than rows: the first computes none
    weight = TensorSpec("w", (height, depth), DType.FLOAT32, height * depth)
    chunkings = {0: Chunking(2, to_shards=True)}
    slices = cut([weight], Cut(10, 4096), op=Op.MEAN, placement=Placement(owners), chunkings=chunkings)
    shards = find_shards(slices, height, owners)
    assert [(shard.rank, shard.rows) for shard in shards] == [(5, range(1)), (6, range(1, 2)), (7, range(2, 3))]
    # Two chunks of the activations and one of the deltas for each shard; then the rows.
    assert [shard.keys for shard in shards] == [[10, 11, 12], [13, 14, 15], [16, 17, 18]]
    assert [[item.ranges[0].offset for item in shard.slices] for shard in shards] == [[0], [1024], [2048]]


def test_a_tensor_is_named_with_shape_and_type() -> None:
    assert str(TensorSpec("layer.weight", (10, 64), DType.FLOAT32, 640)) == "'layer.weight' [10, 64] float32"
    assert str(TensorSpec("mask", (3,), DType.BYTES, 3, "torch.bool")) == "'mask' [3] torch.bool"
