"""Discarded keys in the engine thread: tell the other ranks, and forget keys that all ranks have discarded.

In: keys whose table is gone on this rank, and what other ranks say of theirs.  Out: messages to all other ranks, and
less memory.  Ranks discard the same keys at different times: Python's garbage collector decides when.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

from undertow.coordinator.messages import Discarded
from undertow.core.discards import Discards
from undertow.runtime.exchange import Exchange
from undertow.store.shard import Unexpected


class CanDiscard(Protocol):
    """Interface of a group that can forget keys."""

    def discard(self, keys: range) -> None: ...


def discard_with(owner: object, group: CanDiscard, keys: range) -> None:
    """Let the group discard these keys when their owner is gone; from whichever thread lets go of it.

    Not at the end of the process: it leaves its groups then.
    """
    weakref.finalize(owner, group.discard, keys).atexit = False


class Discarding:
    """This rank's side of discarded keys.  `tell_all` reaches every other rank."""

    def __init__(self, rank: int, size: int, exchange: Exchange, tell_all: Callable[[Discarded], None]) -> None:
        self._exchange = exchange
        self._tell_all = tell_all
        self._discards = Discards(rank, size)
        self._tables: set[int] = set()  # first keys of those that are not forgotten yet
        self._busy: list[range] = []  # of tables that are gone here, while contributions may still be under way

    def begin_with_table(self, keys: range) -> None:
        """As `begin`, of a whole table: its memory is let go of with the keys, unlike that of single calls."""
        self._tables.add(keys.start)
        self.begin(keys)

    def begin(self, keys: range) -> None:
        """This rank starts no more rounds of these keys; those under way may still take a while."""
        self._busy.append(keys)
        self.look()

    def look(self) -> None:
        """Discard what is no longer under way."""
        waiting, self._busy = self._busy, []
        for keys in waiting:
            if self._exchange.is_idle(keys):
                self._tell_all(Discarded(keys.start))
                self._forget(self._discards.discard(keys))
            else:
                self._busy.append(keys)

    def hear(self, peer: int, first: int) -> None:
        """Another rank has discarded the keys from this one on."""
        if not self._exchange.knows(first) or not self._discards.expects(peer, first):
            raise Unexpected(f"rank {peer} discards keys from {first} on, which are not in use")
        self._forget(self._discards.hear(peer, first))

    def _forget(self, keys: range | None) -> None:
        if keys is not None:
            self._exchange.forget(keys)
            if keys.start in self._tables:
                self._tables.remove(keys.start)
                self._exchange.free_memory()
