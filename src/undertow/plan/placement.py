"""Which shard owns a slice: the one with the fewest bytes so far.

Slices of equal size go round in a circle that way, and unequal ones still load
every host's link alike.  Deterministic: all ranks come to the same answer.
"""

from __future__ import annotations


class Placement:
    """`start` is the shard that comes first, so that many small tables do not all begin at the same one."""

    def __init__(self, shards: int, *, start: int = 0) -> None:
        self.shards = shards
        self._load_bytes = [0] * shards
        self._order = [(start + shard) % shards for shard in range(shards)]

    def place(self, size_bytes: int) -> int:
        shard = min(self._order, key=self._load_bytes.__getitem__)
        self._load_bytes[shard] += size_bytes
        return shard
