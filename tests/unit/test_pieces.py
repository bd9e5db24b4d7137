"""What a worker knows of a gradient becomes bytes, and these become it again, however they are cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from undertow.errors import UndertowError
from undertow.torch.device import HostCopier
from undertow.torch.pieces import ALIGNMENT, NOTHING, Blob, Column, Known, pack, split, unpack

HOST = torch.device("cpu")
SHAPE = torch.Size((3, 5))
FACTORS = (Column(5), Column(3))
ROWS = (Column(1, torch.int64), Column(5))
TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def pack_here(known: Known) -> Blob:
    return pack(known, HostCopier(), HOST)


def unpack_here(blob: Blob, columns: Sequence[Column], dtype: torch.dtype = torch.float32, chunks: int = 1) -> Known:
    return unpack(split(blob.array, chunks), blob.number, columns, SHAPE, dtype)


def make_factors(rows: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    return tuple(torch.randn(rows, width, generator=generator).to(dtype) for width in (5, 3))


def check_same(one: Known, other: Known) -> None:
    assert one.is_present == other.is_present
    assert (one.whole is None) == (other.whole is None)
    for ours, theirs in zip((*one.parts, one.whole), (*other.parts, other.whole), strict=True):
        if ours is not None and theirs is not None:
            assert ours.dtype is theirs.dtype
            assert ours.shape == theirs.shape
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("chunks", [1, 2, 3, 7, 500])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_factors_and_a_whole_gradient_come_out_as_they_went_in(rows: int, dtype: torch.dtype, chunks: int) -> None:
    for whole in (None, torch.randn(SHAPE)):
        known = Known(make_factors(rows, dtype), whole)
        check_same(unpack_here(pack_here(known), FACTORS, chunks=chunks), known)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_keep_the_type_of_their_numbers(dtype: torch.dtype, chunks: int) -> None:
    known = Known((torch.tensor([[2**40], [0], [7]]), torch.randn(3, 5).to(dtype)), torch.randn(SHAPE).to(dtype))
    check_same(unpack_here(pack_here(known), ROWS, dtype, chunks), known)


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("columns", [FACTORS, ROWS])
def test_parts_without_rows_are_present(columns: Sequence[Column], chunks: int) -> None:
    parts = tuple(torch.empty(0, column.width, dtype=column.dtype or torch.float32) for column in columns)
    for whole in (None, torch.randn(SHAPE)):
        known = Known(parts, whole)
        blob = pack_here(known)
        assert (blob.array is None) == (whole is None)
        check_same(unpack_here(blob, columns, chunks=chunks), known)


def test_a_gradient_without_parts_and_no_gradient_at_all_are_told_apart() -> None:
    whole = Known((), torch.randn(SHAPE))
    check_same(unpack_here(pack_here(whole), FACTORS, chunks=2), whole)
    zero = pack_here(Known())  # there, but zero
    assert zero.array is None
    check_same(unpack_here(zero, FACTORS), Known())
    nothing = pack_here(NOTHING)
    assert nothing.array is None
    assert unpack_here(nothing, FACTORS) == NOTHING


def test_numbers_that_are_not_finite_keep_their_bits() -> None:
    deltas = torch.tensor([[float("nan"), float("inf"), -float("inf")]])
    known = unpack_here(pack_here(Known((torch.zeros(1, 5), deltas))), FACTORS)
    assert torch.equal(known.parts[1].view(torch.int32), deltas.view(torch.int32))


def test_what_is_packed_is_a_copy_of_any_layout() -> None:
    activations = torch.arange(10.0).reshape(5, 2).t()  # not contiguous
    deltas = torch.ones(1, 1).expand(2, 3)
    blob = pack_here(Known((activations, deltas)))
    expected = activations.clone()
    activations.zero_()
    check_same(unpack_here(blob, FACTORS), Known((expected, torch.ones(2, 3))))


def test_every_tensor_begins_where_any_type_may() -> None:
    blob = pack_here(Known(make_factors(1, torch.bfloat16), torch.randn(SHAPE)))
    assert blob.array is not None
    assert blob.array.size == ALIGNMENT + ALIGNMENT + 4 * ALIGNMENT  # 10, 6 and 60 bytes


def test_chunks_cover_everything_and_may_be_empty() -> None:
    array = torch.arange(10, dtype=torch.uint8).numpy()
    for count in (1, 3, 10, 13):
        chunks = split(array, count)
        assert len(chunks) == count
        assert [byte for chunk in chunks if chunk is not None for byte in chunk] == list(range(10))
    assert split(None, 3) == [None] * 3


def test_bytes_that_do_not_fit_their_number_are_refused() -> None:
    blob = pack_here(Known(make_factors(4)))
    assert blob.array is not None
    with pytest.raises(UndertowError, match="112 bytes, but its number 40201 says 128"):
        unpack([blob.array[:-16]], blob.number, FACTORS, SHAPE, torch.float32)
