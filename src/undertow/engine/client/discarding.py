"""Discarded keys in the engine thread: tell the other ranks, and forget keys that all ranks have discarded.

In: keys whose table is gone on this rank, and those that other ranks discard.  Out: messages to all other ranks, and
less memory.  Ranks discard the same keys at different times: Python's garbage collector decides when.

A rank discards keys when it will contribute to them no more and has the answers to all its contributions.  So once
all ranks have, no round of these keys is open anywhere and no frame of them is under way.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from undertow.engine.client.exchange import Exchange
from undertow.engine.coordinator.messages import Discarded
from undertow.engine.core.frames import Unexpected


def discard_with(owner: object, discard: Callable[[range], None], keys: range) -> None:
    """Let the group of `discard` discard these keys when their owner is garbage, in whichever thread that is noticed.

    Not at the end of the process, which leaves its groups then.
    """
    weakref.finalize(owner, discard, keys).atexit = False


class Discards:
    """Discarded keys of one group, as one of its ranks knows them.  Not thread-safe."""

    def __init__(self, rank: int, workers: int) -> None:
        self._rank = rank
        self._workers = workers
        self._own: dict[int, range] = {}  # first key -> the keys that this rank has discarded, and another one has not
        self._ranks: dict[int, set[int]] = {}  # first key -> the ranks that have discarded them; never all

    def discard(self, keys: range) -> range | None:
        """Discard keys on this rank; return them if it is the last one to do so."""
        self._own[keys.start] = keys
        return self.discard_on(self._rank, keys.start)

    def expects(self, rank: int, first: int) -> bool:
        """Whether this rank may discard those keys: not twice."""
        return rank not in self._ranks.get(first, ())

    def discard_on(self, rank: int, first: int) -> range | None:
        """Note that a rank has discarded the keys that begin with this one; return them if it is the last to do so."""
        ranks = self._ranks.setdefault(first, set())
        ranks.add(rank)
        if len(ranks) < self._workers:
            return None
        del self._ranks[first]
        return self._own.pop(first)


class Discarding:
    """Discarded keys of one group, as one of its ranks knows them; `tell_all` sends to every other rank."""

    def __init__(self, rank: int, workers: int, exchange: Exchange, tell_all: Callable[[Discarded], None]) -> None:
        self._exchange = exchange
        self._tell_all = tell_all
        self._discards = Discards(rank, workers)
        self._tables: set[int] = set()  # first keys of those that are not forgotten yet
        self._busy: list[range] = []  # of tables that are gone here, while contributions may still be under way

    def begin_with_table(self, keys: range) -> None:
        """Discard the keys of a table, and free its memory with them, which `begin` does not."""
        self._tables.add(keys.start)
        self.begin(keys)

    def begin(self, keys: range) -> None:
        """Discard keys as soon as no round of them is under way; this rank starts no more."""
        self._busy.append(keys)
        self.look()

    def look(self) -> None:
        """Discard keys whose rounds are over."""
        waiting, self._busy = self._busy, []
        for keys in waiting:
            if self._exchange.is_idle(keys):
                self._tell_all(Discarded(keys.start))
                self._forget(self._discards.discard(keys))
            else:
                self._busy.append(keys)

    def discard_on(self, peer: int, first: int) -> None:
        """Note that another rank has discarded the keys that begin with this one."""
        if not self._exchange.knows(first) or not self._discards.expects(peer, first):
            raise Unexpected(f"rank {peer} discards keys from {first} on, which are not in use")
        self._forget(self._discards.discard_on(peer, first))

    def _forget(self, keys: range | None) -> None:
        if keys is not None:
            self._exchange.forget(keys)
            if keys.start in self._tables:
                self._tables.remove(keys.start)
                self._exchange.free_memory()
