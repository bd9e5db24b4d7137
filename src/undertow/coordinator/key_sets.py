"""Sets of keys for calls by name: used again by later calls of the same form, and dropped when too many are free.

In: "a call of this form needs a set", "this set is free".  Out: the number of a set, and which sets are dropped.
A program whose calls all differ in size would otherwise leave a set behind for each of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

MOST_FREE_KEYS = 1 << 14  # some ten megabytes on each rank


@dataclass(frozen=True, slots=True)
class _KeySet:
    form: Hashable  # of the calls that it serves
    count: int  # of keys


class KeySets:
    """All sets of one group.  Not thread-safe."""

    def __init__(self) -> None:
        self._made = 0  # sets so far; their numbers are never used again
        self._sets: dict[int, _KeySet] = {}
        # form -> sets that are free, the one that was used longest ago first; none is empty
        self._free: dict[Hashable, deque[int]] = {}
        self._idle: dict[int, None] = {}  # all of these, the one that was used longest ago first
        self._free_keys = 0

    def take(self, form: Hashable) -> int | None:
        """A free set for calls of this form, if there is one."""
        free = self._free.get(form)
        if free is None:
            return None
        number = free.pop()
        self._remove(number)
        return number

    def make(self, form: Hashable, count: int) -> int:
        """A new set, in use at once."""
        number, self._made = self._made, self._made + 1
        self._sets[number] = _KeySet(form, count)
        return number

    def give(self, number: int) -> None:
        """The call on these keys is over."""
        found = self._sets[number]
        self._free.setdefault(found.form, deque()).append(number)
        self._idle[number] = None
        self._free_keys += found.count

    def drop_surplus(self) -> list[int]:
        """Sets that are dropped, because more keys are free than are worth keeping."""
        dropped = []
        while self._free_keys > MOST_FREE_KEYS:
            number = next(iter(self._idle))
            self._free[self._sets[number].form].popleft()  # used longest ago of all, so also of its form
            self._remove(number)
            del self._sets[number]
            dropped.append(number)
        return dropped

    def _remove(self, number: int) -> None:
        """Remove a set from the free ones; it is out of its form's queue already."""
        found = self._sets[number]
        del self._idle[number]
        self._free_keys -= found.count
        if not self._free[found.form]:
            del self._free[found.form]
