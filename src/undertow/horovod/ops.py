"""What a reduction does with the arrays of all ranks: pure, numpy in and out.

In: one array of each rank, in rank order.  Out: the result, the same bits wherever it is made.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from undertow.core.dtypes import DType
from undertow.core.rounds import QUIET, Array, fold


class ReduceOp(enum.IntEnum):
    """With Horovod's numbers."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


_PAIRWISE: dict[ReduceOp, Any] = {
    ReduceOp.Min: np.minimum,
    ReduceOp.Max: np.maximum,
    ReduceOp.Product: np.multiply,
}
_WIDE = {code.numpy: code.accumulator for code in DType}


@QUIET
def reduce_arrays(op: ReduceOp, arrays: Sequence[Array], size: int) -> Array:
    """Of the ranks that take part; a mean is over `size` ranks, whether they do or not."""
    dtype = arrays[0].dtype
    wide = _WIDE.get(dtype, dtype)
    if op in _PAIRWISE:
        total = arrays[0].astype(wide)
        for array in arrays[1:]:
            _PAIRWISE[op](total, array, out=total, dtype=wide, casting="unsafe")
        return total.astype(dtype)
    total = np.empty(arrays[0].size, wide)
    is_mean = op is ReduceOp.Average
    is_whole = dtype.kind in "iub"
    fold(list(arrays), total, divisor=size if is_mean and not is_whole else 1)
    return divide_whole(total, size) if is_mean and is_whole else total.astype(dtype)


def divide_whole(total: Array, size: int) -> Array:
    """The mean of whole numbers, rounded towards zero."""
    quotient = np.abs(total) // size
    signed: Array = (np.sign(total) * quotient).astype(total.dtype)
    return signed


def split_rows(rows: int, size: int) -> list[range]:
    """Which rows of a tensor each rank gets: the first ranks one more where it does not come out even."""
    each, more = divmod(rows, size)
    starts = [rank * each + min(rank, more) for rank in range(size + 1)]
    return [range(starts[rank], starts[rank + 1]) for rank in range(size)]
