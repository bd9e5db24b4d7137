"""Reduces and packs arrays: pure, numpy in and out.

`reduce_arrays` takes one array of each rank, in rank order, and gives the same bits on every rank that computes it.
`pack` and `unpack` convert between several arrays of one rank, with its counts, and one array of bytes.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import QUIET, Array, fold


class ReduceOp(enum.IntEnum):
    """The reduction operations, with Horovod's numbers."""

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
    """Reduce the arrays of the ranks that take part; a mean divides by `size`, which also counts the other ranks."""
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
    """Divide whole numbers, rounding towards zero."""
    quotient = np.abs(total) // size
    signed: Array = (np.sign(total) * quotient).astype(total.dtype)
    return signed


def split_rows(rows: int, size: int) -> list[range]:
    """Divide the rows of a tensor among the ranks; if they do not divide evenly, the first ranks get one row more."""
    each, more = divmod(rows, size)
    starts = [rank * each + min(rank, more) for rank in range(size + 1)]
    return [range(starts[rank], starts[rank + 1]) for rank in range(size)]


COUNT_BYTES = 8


def pack(arrays: Sequence[Array], counts: Sequence[int] = ()) -> Array:
    """Copy counts and arrays into a new array of bytes."""
    head = np.asarray(counts, np.int64).view(np.uint8)
    return np.concatenate([head, *(array.reshape(-1).view(np.uint8) for array in arrays)])


def read_counts(blob: Array, count: int) -> list[int]:
    numbers: list[int] = np.frombuffer(blob[: count * COUNT_BYTES].tobytes(), np.int64).tolist()
    return numbers


def unpack(blob: Array, sizes_bytes: Sequence[int], count: int = 0) -> list[Array]:
    """Return views of the arrays that follow `count` numbers."""
    ends = np.cumsum([count * COUNT_BYTES, *sizes_bytes]).tolist()
    if ends[-1] != blob.size:
        raise ValueError(f"a blob of {blob.size} bytes instead of {ends[-1]}")
    return [blob[start:end] for start, end in itertools.pairwise(ends)]
