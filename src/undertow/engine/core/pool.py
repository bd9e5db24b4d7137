"""Memory for contributions on their way into a sum, used again and again.

A fresh megabyte from the system costs as much as adding it up; a used one costs nothing.
One contribution of each round becomes the sum and does not come back; the others do.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from undertow.engine.core.rounds import Array

MOST_FREE_BYTES = 64 << 20
# A full pool may hold sizes that are not used any more.  It is emptied when it had no room for this many bytes:
# what is lost by that is little beside what came from the system meanwhile.
MOST_REFUSED_BYTES = 16 * MOST_FREE_BYTES


class Memory(Protocol):
    """Memory in which contributions are received."""

    def take(self, size_bytes: int) -> Array:
        """Return memory for one contribution."""

    def give(self, array: Array) -> None:
        """Take back, once, what was taken here, or a view of it."""

    def clear(self) -> None:
        """Release free memory to the system: other sizes will be asked for from now on."""


class Pool:
    """Free memory by size.  Owned by the engine thread."""

    def __init__(self) -> None:
        self._free: dict[int, list[Array]] = {}  # by size; no list is empty
        self._free_bytes = 0
        self._refused_bytes = 0  # what was given since it began and did not fit

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
        """Take back, once, what was taken here, or a view of it."""
        memory = array if array.base is None else array.base
        if self._free_bytes + memory.nbytes <= MOST_FREE_BYTES:
            self._free.setdefault(memory.nbytes, []).append(memory)
            self._free_bytes += memory.nbytes
            return
        self._refused_bytes += memory.nbytes
        if self._refused_bytes > MOST_REFUSED_BYTES:
            self.clear()

    def clear(self) -> None:
        """Release free memory to the system: other sizes will be asked for from now on."""
        self._free.clear()
        self._free_bytes = self._refused_bytes = 0
