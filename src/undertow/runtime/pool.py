"""Memory for contributions on their way into a sum, used again and again.

A fresh megabyte from the system costs as much as adding it up; a used one costs nothing.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from undertow.core.rounds import Array

MOST_FREE_BYTES = 64 << 20


class Pool:
    """Owned by the engine thread."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Array]] = defaultdict(list)
        self._free_bytes = 0
        self._lent: set[int] = set()  # ids of the arrays that are out

    def take(self, size_bytes: int) -> Array:
        """Bytes for one contribution."""
        if self._free[size_bytes]:
            memory = self._free[size_bytes].pop()
            self._free_bytes -= size_bytes
        else:
            memory = np.empty(size_bytes, np.uint8)
        self._lent.add(id(memory))
        return memory

    def give(self, array: Array) -> None:
        """Take back what was lent, or any view of it; other arrays are left alone."""
        memory = array if array.base is None else array.base
        if id(memory) not in self._lent:
            return
        self._lent.discard(id(memory))
        if self._free_bytes + memory.nbytes <= MOST_FREE_BYTES:
            self._free[memory.nbytes].append(memory)
            self._free_bytes += memory.nbytes
