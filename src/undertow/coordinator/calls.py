"""Calls that all ranks make under the same name, in any order and several at once.

In: each rank's call, and who has run out of input.  Out: messages for all ranks: get ready for these
keys, begin, or in words why this call cannot be.  It runs in the coordinator, which lives with rank 0.

Unlike after an agreement, ranks that differ in a call go on: only that call ends, on all of them.
Keys are used again by later calls of the same form.  All ranks hear of beginnings in the same order,
so two calls on the same keys never cross.
"""

from __future__ import annotations

from collections.abc import Callable

from undertow.coordinator.agreement import Keys
from undertow.coordinator.key_sets import KeySets
from undertow.coordinator.messages import AllOut, Begin, Call, Decline, Drop, Message, Prepare
from undertow.coordinator.terms import Terms, find_difference, lay_out
from undertow.errors import Garbled
from undertow.plan.sizing import Sizes
from undertow.plan.slicing import Cut


class Calls:
    """All named calls of one group.  Not thread-safe."""

    def __init__(self, size: int, *, sizes: Sizes, keys: Keys, name: Callable[[int], int] = lambda rank: rank) -> None:
        """`name` gives the number by which messages call a rank."""
        self._size = size
        self._name = name
        self._sizes = sizes
        self._keys = keys
        self._open: dict[str, dict[int, Terms]] = {}  # name -> who has made the call; never all
        self._out: list[int] = []  # who has run out of input, in that order; never all
        self._sets = KeySets()
        self._preparing: dict[int, tuple[str, set[int]]] = {}  # set -> its first call, and who does not know it yet

    def expects(self, rank: int, name: str) -> bool:
        """Whether this rank may make that call: not twice."""
        return rank not in self._open.get(name, ())

    def arrive(self, rank: int, call: Call) -> list[Message]:
        """A rank makes a call."""
        self._open.setdefault(call.name, {})[rank] = call.terms
        return self._settle(call.name)

    def run_out(self, rank: int) -> list[Message]:
        """A rank has no more input: calls go on without it until all have none."""
        if rank in self._out:
            return []
        self._out.append(rank)
        told = [message for name in list(self._open) for message in self._settle(name)]
        if len(self._out) == self._size:
            self._out = []
            told.append(AllOut(rank))
        return told

    def prepared(self, rank: int, number: int) -> list[Message]:
        """A rank knows these keys.  Nobody may push before everybody does."""
        if number not in self._preparing:
            return []
        name, missing = self._preparing[number]
        missing.discard(rank)
        if missing:
            return []
        del self._preparing[number]
        return [Begin(name, number)]

    def release(self, number: int) -> None:
        """The call on these keys is over, at least here.

        Others may still be in it: a further call on the same keys waits there until it is.
        """
        self._sets.give(number)

    def lacks(self, rank: int) -> str | None:
        """The name of a call that others have made and this rank has not."""
        for name, present in self._open.items():
            if rank not in present and rank not in self._out:
                return name
        return None

    def waits_for(self, rank: int) -> str | None:
        """The name of a call that the others wait in for this rank."""
        return self.lacks(rank) or next((name for name, missing in self._preparing.values() if rank in missing), None)

    def missing(self) -> dict[str, list[int]]:
        """Return the ranks that have not made it, for each call that waits."""
        here = {name: {*present, *self._out} for name, present in self._open.items()}
        everyone = range(self._size)
        return {name: [self._name(rank) for rank in everyone if rank not in ranks] for name, ranks in here.items()}

    def _settle(self, name: str) -> list[Message]:
        present = self._open[name]
        if len({*present, *self._out}) < self._size:
            return []
        del self._open[name]
        named = {self._name(rank): terms for rank, terms in present.items()}
        reason = find_difference(name, named) or self._find_absence(name, present)
        if reason:
            return [Decline(name, reason)]
        try:
            return self._begin(name, present[min(present)])
        except Garbled as error:
            return [Decline(name, str(error))]

    def _find_absence(self, name: str, present: dict[int, Terms]) -> str:
        absent = [self._name(rank) for rank in range(self._size) if rank not in present]
        terms = present[min(present)]
        if not absent or terms.allows_absent:
            return ""
        ranks = ", ".join(map(str, absent))
        return f"{terms.kind} {name!r} needs all ranks, but rank {ranks} has run out of input and called join()"

    def _begin(self, name: str, terms: Terms) -> list[Message]:
        free = self._sets.take(terms.signature)
        if free is not None:
            return [Begin(name, free)]
        slice_bytes = self._sizes.choose(terms.size_bytes, shards=self._size)
        count = len(lay_out(terms, Cut(0, slice_bytes), self._size))
        number = self._sets.make(terms.signature, count)
        self._preparing[number] = name, set(range(self._size))
        dropped = [Drop(other) for other in self._sets.drop_surplus()]
        return [*dropped, Prepare(number, Cut(self._keys.take(count), slice_bytes), terms)]
