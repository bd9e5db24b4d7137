"""Bytes that weigh nothing: only their number is real.

In place of the arrays of a training run, so that the engine's own code can move terabytes that are not there.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from undertow.core.rounds import Array, Held, Round


class Bulk:
    """As much of an array as the engine looks at."""

    __slots__ = ("nbytes",)
    dtype = np.dtype(np.float32)

    def __init__(self, size_bytes: int) -> None:
        self.nbytes = size_bytes

    def view(self, dtype: Any) -> Bulk:
        return self


@functools.cache
def make_bulk(size_bytes: int) -> Any:
    """Typed as what it stands for."""
    return Bulk(size_bytes)


class Nowhere:
    """The memory in which nothing is received."""

    def take(self, size_bytes: int) -> Array:
        array: Array = make_bulk(size_bytes)
        return array

    def give(self, array: Array) -> None:
        pass

    def clear(self) -> None:
        pass


class CountedRound(Round):
    """A round whose contributions are counted, not added."""

    def _fold(self, waiting: list[Held | None], *, divisor: int = 1, into: Array | None = None) -> None:
        for item in waiting:
            if item is not None:
                self._sum = item.array
                return
