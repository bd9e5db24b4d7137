"""The byte format of one worker's factors.

In: sizes, or a payload.  Out: the offset of each tensor, or arrays that share the payload's memory.
The factors come first, in order, then the whole gradient if there is one; each starts at a multiple of 16 bytes.
The descriptor says how to read them:

    bit 0       the worker has a gradient
    bit 1       a whole gradient follows the factors
    bits 8-15   the type of the factors' values, see DType
    bits 16-63  the number of rows of each factor
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Array
from undertow.errors import UndertowError
from undertow.sync.slot import NO_FACTORS, Field, Payload, WorkerFactors

ALIGNMENT = 16
_PRESENT, _WHOLE = 1, 2

NO_GRADIENT = Payload(None, 0)


def describe(rows: int, dtype: DType | None, *, has_whole: bool) -> int:
    """Return the descriptor of a payload; a `dtype` of None means that there are no factors."""
    factors = 0 if dtype is None else dtype << 8 | rows << 16
    return _PRESENT | _WHOLE * has_whole | factors


def find_starts(sizes: Sequence[int]) -> list[int]:
    """Return the offsets of tensors of these sizes in bytes, and the size of the payload."""
    return list(itertools.accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))


def unpack(
    chunks: Sequence[Array | None], descriptor: int, fields: Sequence[Field], shape: Sequence[int], dtype: np.dtype[Any]
) -> WorkerFactors[Array]:
    """Return the factors that a worker packed; the arrays share the chunk's memory if there is only one."""
    if not descriptor & _PRESENT:
        return NO_FACTORS
    forms: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
    if descriptor >> 8:
        rows, values = descriptor >> 16, DType(descriptor >> 8 & 0xFF).numpy
        forms += [((rows, field.width), field.dtype or values) for field in fields]
    if descriptor & _WHOLE:
        forms.append((tuple(shape), dtype))
    sizes = [math.prod(size) * kind.itemsize for size, kind in forms]
    starts = find_starts(sizes)
    memory = _join(chunks)
    if memory.size != starts[-1]:
        raise UndertowError(
            f"a payload of factors has {memory.size} bytes where its descriptor {descriptor:x} says {starts[-1]}"
        )
    arrays = [
        memory[start : start + size_bytes].view(kind).reshape(size)
        for start, size_bytes, (size, kind) in zip(starts, sizes, forms, strict=False)
    ]
    whole = arrays.pop() if descriptor & _WHOLE else None
    return WorkerFactors(tuple(arrays), whole)


def split(array: Array | None, count: int) -> list[Array | None]:
    """Return chunks of about equal size, None where a chunk is empty."""
    if array is None:
        return [None] * count
    bounds = [array.size * index // count for index in range(count + 1)]
    return [array[start:end] if end > start else None for start, end in itertools.pairwise(bounds)]


def _join(chunks: Sequence[Array | None]) -> Array:
    held = [chunk for chunk in chunks if chunk is not None]
    if len(held) == 1:
        return held[0]
    return np.concatenate(held) if held else np.empty(0, np.uint8)
