"""Keys that are no longer used: which ranks have discarded them, and when they can be forgotten.

In: "this rank discards these keys", "that rank has discarded the keys from this one on".
Out: the keys to forget now, once every rank has discarded them.

A rank discards keys when it will contribute to them no more and has the answers to all its contributions.  So once
all ranks have, no round of these keys is open anywhere and no frame of them is under way.
"""

from __future__ import annotations


class Discards:
    """Discarded keys of one group, as one of its ranks knows them.  Not thread-safe."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._own: dict[int, range] = {}  # first key -> the keys that this rank has discarded, and another one has not
        self._ranks: dict[int, set[int]] = {}  # first key -> who has discarded them; never all

    def discard(self, keys: range) -> range | None:
        """This rank discards these keys.  Returns them if it is the last one to do so."""
        self._own[keys.start] = keys
        return self.hear(self._rank, keys.start)

    def expects(self, rank: int, first: int) -> bool:
        """Whether this rank may discard those keys: not twice."""
        return rank not in self._ranks.get(first, ())

    def hear(self, rank: int, first: int) -> range | None:
        """A rank has discarded the keys from this one on.  Returns them if it is the last one to do so."""
        ranks = self._ranks.setdefault(first, set())
        ranks.add(rank)
        if len(ranks) < self._size:
            return None
        del self._ranks[first]
        return self._own.pop(first)
