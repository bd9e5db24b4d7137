"""Calls that all ranks make under the same name, in any order and several at once.

In: each rank's call, and the ranks that have run out of input.  Out: messages for all ranks: prepare keys, begin a
call, or decline it with a reason.  Runs in the coordinator, in rank 0's process.

A mismatch ends only the call that it concerns, unlike one in an agreement, which ends everything.
All ranks begin calls in the same order, so two calls on the same keys never mix.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from undertow.engine.coordinator.agreement import Keys
from undertow.engine.coordinator.messages import AllOut, Begin, Call, Decline, Drop, Message, Prepare
from undertow.engine.coordinator.terms import Disagreement, Terms, find_difference, lay_out
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Cut
from undertow.errors import Garbled, name_ranks

MOST_FREE_KEYS = 1 << 14  # some ten megabytes on each rank


@dataclass(frozen=True, slots=True)
class _KeySet:
    """Keys for calls with the same signature."""

    signature: Hashable
    count: int  # number of keys


class KeySets:
    """Sets of keys of one group, reused by later calls with the same signature.  Not thread-safe.

    Sets are dropped when too many keys are free.  Otherwise a program whose calls all differ in size would leave a set
    behind for each of them.
    """

    def __init__(self) -> None:
        self._made = 0  # number of sets made so far; set numbers are never reused
        self._sets: dict[int, _KeySet] = {}
        self._free: dict[Hashable, deque[int]] = {}  # signature -> free sets, least recently used first; never empty
        self._idle: dict[int, None] = {}  # all free sets, least recently used first
        self._free_keys = 0

    def take(self, signature: Hashable) -> int | None:
        """Take a free set for calls with this signature into use; return None if there is none."""
        free = self._free.get(signature)
        if free is None:
            return None
        number = free.pop()
        self._remove(number)
        return number

    def make(self, signature: Hashable, count: int) -> int:
        """Make a new set, which is in use, and return its number."""
        number, self._made = self._made, self._made + 1
        self._sets[number] = _KeySet(signature, count)
        return number

    def give(self, number: int) -> None:
        """Free a set, because the call on its keys is over."""
        found = self._sets[number]
        self._free.setdefault(found.signature, deque()).append(number)
        self._idle[number] = None
        self._free_keys += found.count

    def drop_surplus(self) -> list[int]:
        """Drop free sets until at most `MOST_FREE_KEYS` keys are free; return the numbers of the dropped sets."""
        dropped = []
        while self._free_keys > MOST_FREE_KEYS:
            number = next(iter(self._idle))
            self._free[self._sets[number].signature].popleft()  # the least recently used set, also for its signature
            self._remove(number)
            del self._sets[number]
            dropped.append(number)
        return dropped

    def _remove(self, number: int) -> None:
        """Stop counting a set as free.  The caller has taken it from its signature's queue."""
        found = self._sets[number]
        del self._idle[number]
        self._free_keys -= found.count
        if not self._free[found.signature]:
            del self._free[found.signature]


class NamedCallCoordinator:
    """Coordinator's side of all named calls of one group.  Not thread-safe."""

    def __init__(self, shape: Shape, keys: Keys) -> None:
        self._shape = shape
        self._name = shape.name
        self._keys = keys
        self._open: dict[str, dict[int, Terms]] = {}  # name -> terms of each rank that has made the call; never all
        self._out: list[int] = []  # ranks that have run out of input, in that order; never all
        self._sets = KeySets()
        self._preparing: dict[int, tuple[str, set[int]]] = {}  # set -> first call, ranks that do not know the set yet

    def expects(self, rank: int, name: str) -> bool:
        """Whether a rank may make this call: it is a worker's and has not made it already."""
        return rank < self._shape.workers and rank not in self._open.get(name, ())

    def arrive(self, rank: int, call: Call) -> list[Message]:
        """Note a rank's call; return the messages for all ranks."""
        self._open.setdefault(call.name, {})[rank] = call.terms
        return self._settle(call.name)

    def run_out(self, rank: int) -> list[Message]:
        """Stop waiting for a rank that has run out of input, until all ranks have."""
        if rank in self._out or rank >= self._shape.workers:
            return []
        self._out.append(rank)
        decisions = [message for name in list(self._open) for message in self._settle(name)]
        if len(self._out) == self._shape.workers:
            self._out = []
            decisions.append(AllOut(rank))
        return decisions

    def prepared(self, rank: int, number: int) -> list[Message]:
        """Note that a rank has learned these keys.  No rank may contribute before all have."""
        if number not in self._preparing:
            return []
        name, missing = self._preparing[number]
        missing.discard(rank)
        if missing:
            return []
        del self._preparing[number]
        return [Begin(name, number)]

    def release(self, number: int) -> None:
        """Let later calls use these keys, because the call on them is over on this rank.

        On other ranks it may still be under way; there, a later call on the same keys waits for its end.
        """
        self._sets.give(number)

    def lacks(self, rank: int) -> str | None:
        """Return the name of a call that others have made and this rank, a worker's, has not."""
        if rank >= self._shape.workers:
            return None
        for name, present in self._open.items():
            if rank not in present and rank not in self._out:
                return name
        return None

    def waits_for(self, rank: int) -> str | None:
        """Return the name of a call in which others wait for this rank; None if there is none."""
        return self.lacks(rank) or next((name for name, missing in self._preparing.values() if rank in missing), None)

    def missing(self) -> dict[str, list[int]]:
        """Return, for each pending call, the ranks that have not made it."""
        here = {name: {*present, *self._out} for name, present in self._open.items()}
        everyone = range(self._shape.workers)
        return {name: [self._name(rank) for rank in everyone if rank not in ranks] for name, ranks in here.items()}

    def _settle(self, name: str) -> list[Message]:
        present = self._open[name]
        if len({*present, *self._out}) < self._shape.workers:
            return []
        del self._open[name]
        named = {self._name(rank): terms for rank, terms in present.items()}
        mismatch = find_difference(name, named) or self._find_absence(name, present)
        if mismatch:
            return [Decline(name, mismatch)]
        try:
            return self._begin(name, present[min(present)])
        except Garbled as error:
            return [Decline(name, Disagreement(str(error), name))]

    def _find_absence(self, name: str, present: dict[int, Terms]) -> Disagreement | None:
        absent = [self._name(rank) for rank in range(self._shape.workers) if rank not in present]
        terms = present[min(present)]
        if not absent or terms.allows_absent:
            return None
        has = "has" if len(absent) == 1 else "have"
        text = f"{terms.kind} {name!r} needs all ranks, but {name_ranks(absent)} {has} run out of input"
        return Disagreement(f"{text} and called join()", name, ranks=tuple(absent))

    def _begin(self, name: str, terms: Terms) -> list[Message]:
        free = self._sets.take(terms.signature)
        if free is not None:
            return [Begin(name, free)]
        slice_bytes = self._shape.sizes.choose(terms.size_bytes, shards=self._shape.shards)
        count = len(lay_out(terms, Cut(0, slice_bytes), self._shape))
        number = self._sets.make(terms.signature, count)
        self._preparing[number] = name, set(range(self._shape.workers))
        dropped = [Drop(other) for other in self._sets.drop_surplus()]
        return [*dropped, Prepare(number, Cut(self._keys.take(count), slice_bytes), terms)]
