"""Which process sets a job has, and by which numbers: pure, the same on all ranks.

In: sets of ranks that are added and removed.  Out: their numbers, or in words why a set cannot be.
Numbers are given as Horovod gives them: 0 are all ranks, and the number removed first is used again first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence


def name_ranks(ranks: Sequence[int]) -> str:
    """A set of ranks, for messages."""
    return f"ranks {', '.join(map(str, ranks))}" if ranks else "no ranks"


class RankSets:
    """The process sets of a job of `size` ranks.  The ranks of each set are in ascending order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ranks = {0: list(range(size))}
        self._free: deque[int] = deque()  # numbers of removed sets
        self._added = 0  # sets so far, removed ones included

    def find_fault(self, ranks: Sequence[int]) -> str:
        """Why these ranks cannot become a set; empty if they can."""
        twice = [rank for rank, count in Counter(ranks).items() if count > 1]
        strangers = [rank for rank in ranks if not 0 <= rank < self._size]
        if not ranks:
            return "a process set of no ranks: give it at least one"
        if twice:
            return f"a process set has rank {twice[0]} more than once"
        if strangers:
            return f"rank {strangers[0]} is not there: ranks are 0 to {self._size - 1}"
        if list(ranks) in self._ranks.values():
            return f"the process set of {name_ranks(ranks)} is there already: no two sets have the same ranks"
        return ""

    def add(self, ranks: Sequence[int]) -> int:
        """The number of a new set, for which `find_fault` finds none."""
        number = self._free.popleft() if self._free else len(self._ranks)
        self._ranks[number] = list(ranks)
        self._added += 1
        return number

    def remove(self, number: int) -> None:
        del self._ranks[number]
        self._free.append(number)

    @property
    def added(self) -> int:
        """How many sets were added so far."""
        return self._added

    def to_dict(self) -> dict[int, list[int]]:
        """The ranks of each set by its number."""
        return {number: list(ranks) for number, ranks in sorted(self._ranks.items())}
