"""Stage 6, the round: contributions of all workers become one result.

In: each worker's contribution to one key at one step, in any order.
Out: the result, added up in rank order, so that every run gives the same bits.
A contribution may be empty: it counts as zero, and where all are empty so is the result.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from undertow.core.dtypes import DType

Array = np.ndarray[Any, Any]

# Workers whose contributions wait are folded together in one pass over the memory;
# from this many on without waiting for the last one, which bounds what is held.
FOLD_AT = 4
# One block of each contribution stays in the core's cache while it is added.
BLOCK_ELEMENTS = 32768


class Op(enum.IntEnum):
    SUM = 0
    MEAN = 1
    COPY = 2  # the lowest rank that holds a value wins


@dataclass(frozen=True, slots=True)
class KeySpec:
    """What every worker and the shard must know of a key."""

    key: int
    elements: int
    dtype: DType
    op: Op
    shard: int
    keep: bool = False  # the shard holds the last result, to be pulled

    @property
    def size_bytes(self) -> int:
        return self.elements * self.dtype.numpy.itemsize


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a complete round gives.  `array` is None where nobody held a value."""

    array: Array | None
    present: int
    absent: int


class Round:
    """Gathers one key's contributions at one step.

    `release(array)` gives a contribution's memory back once it is folded in.
    """

    def __init__(self, spec: KeySpec, size: int, release: Callable[[Array], None]) -> None:
        self.spec = spec
        self.present = 0
        self._size = size
        self._release = release
        self._heard: set[int] = set()
        self._waiting: dict[int, Array | None] = {}  # heard, not yet folded
        self._next_rank = 0  # invariant: all ranks below are folded
        self._sum: Array | None = None

    @property
    def heard(self) -> frozenset[int]:
        return frozenset(self._heard)

    def has(self, rank: int) -> bool:
        return rank in self._heard

    def add(self, rank: int, array: Array | None, present: int = 0) -> None:
        assert rank not in self._heard, f"rank {rank} contributed twice to key {self.spec.key}"
        self._heard.add(rank)
        self._waiting[rank] = array
        self.present |= present
        if len(self._waiting) >= FOLD_AT:
            self._fold(self._ready())

    def is_complete(self, absent: frozenset[int] = frozenset()) -> bool:
        return len(self._heard) + len(absent - self._heard) == self._size

    def missing(self, absent: frozenset[int] = frozenset()) -> list[int]:
        return [rank for rank in range(self._size) if rank not in self._heard and rank not in absent]

    def finish(self, absent: frozenset[int] = frozenset(), *, divide_by_active: bool = False) -> Outcome:
        """The result; only when the round is complete."""
        away = len(absent - self._heard)
        self._fold([self._waiting.pop(rank) for rank in sorted(self._waiting)])
        if self._sum is None:
            return Outcome(None, 0, away)
        divisor = self._size - away if divide_by_active else self._size
        return Outcome(_finish(self._sum, self.spec, divisor), self.present, away)

    def _ready(self) -> list[Array | None]:
        """The unbroken run of contributions from the next rank on, taken out if long enough."""
        run = 0
        while self._next_rank + run in self._waiting:
            run += 1
        if run < FOLD_AT:
            return []
        self._next_rank += run
        return [self._waiting.pop(rank) for rank in range(self._next_rank - run, self._next_rank)]

    def _fold(self, contributions: list[Array | None]) -> None:
        arrays = [array for array in contributions if array is not None]
        if not arrays:
            return
        if self.spec.op is Op.COPY:
            self._sum = arrays[0].copy() if self._sum is None else self._sum
        else:
            self._sum = add_up(self._sum, arrays, self.spec.dtype.accumulator)
        for array in arrays:
            self._release(array)


def add_up(total: Array | None, arrays: list[Array], accumulator: np.dtype[Any]) -> Array:
    """((total + a) + b) + ..., block by block, in the accumulator's type."""
    is_new = total is None
    if total is None:
        total = np.empty(arrays[0].shape, accumulator)
    for start in range(0, total.size, BLOCK_ELEMENTS):
        block = slice(start, start + BLOCK_ELEMENTS)
        target, rest = total[block], arrays
        if is_new and len(arrays) > 1 and arrays[0].dtype == accumulator:
            np.add(arrays[0][block], arrays[1][block], out=target)
            rest = arrays[2:]
        elif is_new:
            np.copyto(target, arrays[0][block], casting="unsafe")
            rest = arrays[1:]
        for array in rest:
            np.add(target, array[block].astype(accumulator, copy=False), out=target)
    return total


def _finish(total: Array, spec: KeySpec, divisor: int) -> Array:
    if spec.op is Op.MEAN and divisor > 1:
        np.divide(total, divisor, out=total)
    return total.astype(spec.dtype.numpy, copy=False)
