"""Reductions and packing of arrays as Horovod does them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from undertow.horovod.ops import ReduceOp, divide_whole, pack, read_counts, reduce_arrays, split_rows, unpack


def test_blobs_unpack_to_what_was_packed() -> None:
    first, second = np.arange(5, dtype=np.uint8), np.arange(3.0)
    piece = pack([first, second], [5, 3])
    assert read_counts(piece, 2) == [5, 3]
    one, two = unpack(piece, [5, 24], 2)
    assert (one == first).all()
    assert (two.copy().view(np.float64) == second).all()
    assert pack([]).size == 0
    assert unpack(pack([first[:0]]), [0])[0].size == 0
    with pytest.raises(ValueError, match="a blob of 45 bytes instead of 46"):
        unpack(piece, [6, 24], 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8, np.int16])
@pytest.mark.parametrize(("op", "expected"), [("Sum", 12), ("Average", 4), ("Min", 2), ("Max", 6), ("Product", 48)])
def test_reductions(dtype: type, op: str, expected: int) -> None:
    arrays = [np.full(3, value).astype(dtype) for value in (2, 4, 6)]
    result = reduce_arrays(ReduceOp[op], arrays, 3)
    assert result.dtype == np.dtype(dtype)
    assert (result == expected).all()
    assert [array[0] for array in arrays] == [2, 4, 6]


def test_sixteen_bit_floats_are_rounded_once() -> None:
    arrays = [np.full(2, value, np.float16) for value in (2048.0, 1.0, 1.0)]
    assert (reduce_arrays(ReduceOp.Sum, arrays, 3) == 2050).all()  # rounding after each addition would give 2048


def test_a_mean_counts_ranks_without_a_contribution() -> None:
    assert (reduce_arrays(ReduceOp.Average, [np.full(2, 6.0)], 3) == 2).all()


def test_means_of_whole_numbers_are_rounded_towards_zero() -> None:
    assert divide_whole(np.array([-7, 7, 0, 9]), 3).tolist() == [-2, 2, 0, 3]
    assert divide_whole(np.array([250], np.uint8), 3).tolist() == [83]


def test_the_first_ranks_get_the_remaining_rows() -> None:
    assert [len(rows) for rows in split_rows(7, 3)] == [3, 2, 2]
    assert split_rows(2, 3) == [range(0, 1), range(1, 2), range(2, 2)]
    assert split_rows(0, 2) == [range(0, 0), range(0, 0)]
