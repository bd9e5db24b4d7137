"""Which shard owns a slice: the one with the fewest bytes so far.

Slices of equal size go round in a circle that way, and unequal ones still load
every host's link alike.  Deterministic: all ranks come to the same answer.
"""

from __future__ import annotations


class Placement:
    def __init__(self, shards: int) -> None:
        self._load_bytes = [0] * shards

    def place(self, size_bytes: int) -> int:
        shard = min(range(len(self._load_bytes)), key=self._load_bytes.__getitem__)
        self._load_bytes[shard] += size_bytes
        return shard
