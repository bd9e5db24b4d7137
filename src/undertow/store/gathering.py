"""Stage 6 without a sum: contributions that everybody gets as they are.

In: each worker's piece of one key at one step, in any order.  Out: all pieces, in rank order, once
they are complete.  What makes no sense is refused with a reason and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from undertow.core.rounds import Array, KeySpec
from undertow.store.shard import Unexpected


class Piece(NamedTuple):
    """What one worker contributed: bytes, or nothing, and a number of its own to read them by."""

    array: Array | None
    present: int


class Gathering:
    """One worker's view of all such keys.  Not thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._done: dict[int, int] = {}  # key -> number of the last complete round
        # Of each key the next round and the one after: a worker that has everybody's pieces goes on, while
        # others still wait for somebody's.  It cannot be further ahead, for then it would lack theirs.
        self._open: dict[tuple[int, int], dict[int, Piece]] = {}

    def own(self, specs: Iterable[KeySpec]) -> None:
        self._done.update((spec.key, 0) for spec in specs)

    def disown(self, keys: Iterable[int]) -> None:
        """These are summed from now on."""
        for key in keys:
            self._done.pop(key, None)

    def knows(self, key: int) -> bool:
        return key in self._done

    def expects(self, rank: int, key: int, step: int) -> None:
        """Returns if this worker may contribute to that round now."""
        if not 0 < step - self._done[key] <= 2:
            raise Unexpected(f"round {step} of key {key} from rank {rank}: {self._done[key]} rounds are done")
        if rank in self._open.get((key, step), ()):
            raise Unexpected(f"a second contribution of rank {rank} to round {step} of key {key}")

    def contribute(self, rank: int, key: int, step: int, piece: Piece) -> list[Piece] | None:
        """All pieces of that round, if this was the last one."""
        self.expects(rank, key, step)
        pieces = self._open.setdefault((key, step), {})
        pieces[rank] = piece
        if len(pieces) < self._size:
            return None
        # Never the later one: its pieces include this worker's own, which follow the answer of the earlier one.
        self._done[key] = step
        del self._open[key, step]
        return [pieces[other] for other in range(self._size)]

    def missing(self, key: int, step: int) -> list[int]:
        """Whom this round still waits for."""
        if not self.knows(key) or step <= self._done[key]:
            return []
        heard = self._open.get((key, step), {})
        return [rank for rank in range(self._size) if rank not in heard]

    def blocked_by(self, departed: Collection[int], spared: Collection[int] = ()) -> int | None:
        """One of these workers, if a round waits for it; `spared` keys do not count."""
        for (key, _), pieces in self._open.items():
            if key in spared:
                continue
            for rank in departed:
                if rank not in pieces:
                    return rank
        return None
