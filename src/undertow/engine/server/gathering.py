"""Stage 6 without a sum: rounds whose contributions are passed on unchanged.

In: each worker's contribution to one key at one step, in any order.  Out: all contributions, in rank order, once
they are complete.  An invalid contribution is refused with a reason and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, KeysView
from typing import NamedTuple

from undertow.engine.core.frames import Unexpected
from undertow.engine.core.rounds import Array, KeySpec

MOST_BYTES = 1 << 32  # no valid contribution is larger


class RankBytes(NamedTuple):
    """Contribution of one rank to a gathered round: bytes, or none, and a number that describes their layout."""

    array: Array | None
    present: int


class Gathering:
    """Rounds of all keys that one process gathers.  Not thread-safe."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._done: dict[int, int] = {}  # key -> number of the last complete round
        self.keys: KeysView[int] = self._done.keys()  # keys gathered here now; a view, as every frame is checked
        # (key, step) -> contributions by rank, for the next round and the one after: a worker that has all
        # contributions goes on while others still lack some.  It cannot get further ahead, because the round after
        # that needs theirs.
        self._open: dict[tuple[int, int], dict[int, RankBytes]] = {}

    def own(self, specs: Iterable[KeySpec]) -> None:
        self._done.update((spec.key, 0) for spec in specs)

    def disown(self, keys: Iterable[int]) -> None:
        """Forget keys that are summed from now on or no longer used."""
        for key in keys:
            self._done.pop(key, None)

    def expects(self, rank: int, key: int, step: int, size_bytes: int = 0) -> None:
        """Raise `Unexpected` unless this worker may contribute this many bytes to that round now."""
        if size_bytes > MOST_BYTES:
            raise Unexpected(f"a contribution of {size_bytes} bytes to key {key}")
        if rank >= self._workers:
            raise Unexpected(f"a contribution of rank {rank}, a server, to key {key}")
        if not 0 < step - self._done[key] <= 2:
            raise Unexpected(f"round {step} of key {key} from rank {rank}: {self._done[key]} rounds are done")
        if rank in self._open.get((key, step), ()):
            raise Unexpected(f"a second contribution of rank {rank} to round {step} of key {key}")

    def contribute(self, rank: int, key: int, step: int, contribution: RankBytes) -> list[RankBytes] | None:
        """Add a contribution; if the round is complete, return all contributions to it."""
        self.expects(rank, key, step)
        contributions = self._open.setdefault((key, step), {})
        contributions[rank] = contribution
        if len(contributions) < self._workers:
            return None
        # The earlier of two open rounds always ends first: the later one needs a contribution of this very worker,
        # which contributes only after the answer of the earlier one.
        self._done[key] = step
        del self._open[key, step]
        return [contributions[other] for other in range(self._workers)]

    def missing(self, key: int, step: int) -> list[int]:
        """Return the ranks that this round still waits for."""
        if key not in self._done or step <= self._done[key]:
            return []
        contributions = self._open.get((key, step), {})
        return [rank for rank in range(self._workers) if rank not in contributions]

    def blocked_by(self, departed: Collection[int], spared: Collection[int] = ()) -> int | None:
        """Return one of these workers that a round waits for; None if there is none.  `spared` keys do not count."""
        workers = [rank for rank in departed if rank < self._workers]
        rounds = (contributions for (key, _), contributions in self._open.items() if key not in spared)
        return next((rank for present in rounds for rank in workers if rank not in present), None)
