"""The bytes of several arrays in one piece, with numbers in front that only the sender knows.

In: arrays of bytes and their numbers of rows.  Out: one array of bytes; and back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from undertow.core.rounds import Array

COUNT_BYTES = 8


def pack(arrays: Sequence[Array], counts: Sequence[int] = ()) -> Array:
    """One piece of fresh memory."""
    head = np.asarray(counts, np.int64).view(np.uint8)
    return np.concatenate([head, *(array.reshape(-1).view(np.uint8) for array in arrays)])


def read_counts(piece: Array, count: int) -> list[int]:
    numbers: list[int] = np.frombuffer(piece[: count * COUNT_BYTES].tobytes(), np.int64).tolist()
    return numbers


def unpack(piece: Array, sizes_bytes: Sequence[int], count: int = 0) -> list[Array]:
    """The arrays behind `count` numbers, as views."""
    ends = np.cumsum([count * COUNT_BYTES, *sizes_bytes]).tolist()
    if ends[-1] != piece.size:
        raise ValueError(f"a piece of {piece.size} bytes instead of {ends[-1]}")
    return [piece[start:end] for start, end in itertools.pairwise(ends)]
