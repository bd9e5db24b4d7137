"""Discarded keys, in the engine thread: informs other ranks and forgets keys that all ranks have discarded.

In: keys that this rank or another rank discards.  Out: messages to all other ranks, calls that free memory.
Ranks discard the same keys at different times, because Python's garbage collector decides when.

A rank discards keys when it will no longer contribute to them and has the answers to all its contributions.  Once all
ranks have discarded them, no round of these keys is open and no frame of them is on any link.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from undertow.engine.client.exchange import Exchange
from undertow.engine.coordinator.messages import Discarded
from undertow.engine.core.frames import Unexpected


def discard_with(owner: object, discard: Callable[[range], None], keys: range) -> None:
    """Call `discard(keys)` when `owner` is garbage-collected, in whichever thread that happens.

    It is not called at the end of the process, which leaves its groups anyway.
    """
    weakref.finalize(owner, discard, keys).atexit = False


class Discarding:
    """Discarding of keys on one rank; `send_all` sends a message to all other ranks.  Owned by the engine thread."""

    def __init__(self, rank: int, workers: int, exchange: Exchange, send_all: Callable[[Discarded], None]) -> None:
        self._rank = rank
        self._workers = workers
        self._exchange = exchange
        self._send_all = send_all
        self._tables: set[int] = set()  # first keys of discarded tables that are not forgotten yet
        self._busy: list[range] = []  # keys to discard once their contributions are answered
        self._own: dict[int, range] = {}  # first key -> keys that this rank has discarded, but not all ranks have
        self._ranks: dict[int, set[int]] = {}  # first key -> the ranks that have discarded them; never all

    def begin_with_table(self, keys: range) -> None:
        """Discard the keys of a table; unlike `begin`, also free memory once they are forgotten."""
        self._tables.add(keys.start)
        self.begin(keys)

    def begin(self, keys: range) -> None:
        """Discard keys as soon as no round of them is under way.  This rank must start no further rounds."""
        self._busy.append(keys)
        self.check()

    def check(self) -> None:
        """Discard the keys whose rounds are over."""
        waiting, self._busy = self._busy, []
        for keys in waiting:
            if self._exchange.is_idle(keys):
                self._send_all(Discarded(keys.start))
                self._own[keys.start] = keys
                self._note(self._rank, keys.start)
            else:
                self._busy.append(keys)

    def discard_on(self, peer: int, first: int) -> None:
        """Note that another rank has discarded the keys starting at `first`."""
        if not self._exchange.knows(first) or peer in self._ranks.get(first, ()):
            raise Unexpected(f"rank {peer} discards the keys starting at {first}, which are not in use")
        self._note(peer, first)

    def _note(self, rank: int, first: int) -> None:
        """Note that a rank has discarded these keys; forget them if it is the last one to do so."""
        ranks = self._ranks.setdefault(first, set())
        ranks.add(rank)
        if len(ranks) < self._workers:
            return
        del self._ranks[first]
        self._exchange.forget(self._own.pop(first))
        if first in self._tables:
            self._tables.remove(first)
            self._exchange.free_memory()
