"""Reusable memory for received contributions.

A fresh megabyte from the system costs as much time as summing it; a reused one costs nothing.
The memory of one contribution per round becomes the sum and does not come back; that of the others does.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from undertow.engine.core.rounds import Array

MOST_FREE_BYTES = 64 << 20
# A full pool may hold sizes that are no longer used.  It is emptied once it has refused this many bytes: refilling it
# costs little compared with what was requested from the system in the meantime.
MOST_REFUSED_BYTES = 16 * MOST_FREE_BYTES


class Memory(Protocol):
    """Memory in which contributions are received."""

    def take(self, size_bytes: int) -> Array:
        """Return memory for one contribution."""

    def give(self, array: Array) -> None:
        """Take back memory from `take`, or a view of it.  To be called at most once for each."""

    def clear(self) -> None:
        """Release free memory to the system, because other sizes are needed from now on."""


class Pool:
    """Pool of free memory by size.  Owned by the engine thread."""

    def __init__(self) -> None:
        self._free: dict[int, list[Array]] = {}  # by size; no list is empty
        self._free_bytes = 0
        self._refused_bytes = 0  # given back without room for them, since the pool was last empty

    def take(self, size_bytes: int) -> Array:
        """Return memory for one contribution."""
        free = self._free.get(size_bytes)
        if free is None:
            return np.empty(size_bytes, np.uint8)
        self._free_bytes -= size_bytes
        memory = free.pop()
        if not free:
            del self._free[size_bytes]
        return memory

    def give(self, array: Array) -> None:
        """Take back memory from `take`, or a view of it.  To be called at most once for each."""
        memory = array if array.base is None else array.base
        if self._free_bytes + memory.nbytes <= MOST_FREE_BYTES:
            self._free.setdefault(memory.nbytes, []).append(memory)
            self._free_bytes += memory.nbytes
            return
        self._refused_bytes += memory.nbytes
        if self._refused_bytes > MOST_REFUSED_BYTES:
            self.clear()

    def clear(self) -> None:
        """Release free memory to the system, because other sizes are needed from now on."""
        self._free.clear()
        self._free_bytes = self._refused_bytes = 0
