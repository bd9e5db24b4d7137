"""Stage 6, the round: contributions of all workers to one key become one result.

In: each worker's contribution to one key at one step, in any order.
Out: the result, added up in rank order, so that every run gives the same bits.
A contribution may be empty: it counts as zero, and if all are empty so is the result.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from undertow.engine.core.dtypes import DType

Array = np.ndarray[Any, Any]

# Contributions are added to the sum several at a time, in one pass over the memory.  At least this many are added
# before the round is complete, which bounds the memory held.
FOLD_AT = 4
# One block of each contribution stays in the core's cache while it is added.
BLOCK_ELEMENTS = 32768
# Infinite gradients are a matter for the loss scaler, not for a warning from the engine thread.
QUIET = np.errstate(all="ignore")


class Op(enum.IntEnum):
    """Operation of a key's rounds."""

    SUM = 0
    MEAN = 1
    COPY = 2  # the value of the lowest rank that has one
    GATHER = 3  # no sum: the owner, or every worker, gets all contributions unchanged, of any length


# Instead of an owner's rank: every worker gets all contributions.
EVERYONE = -1


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Description of a key, the same for every worker and for its owner.

    The owner is the rank of a process.  Shards matter only where slices are placed (see `Shape.owners`).
    """

    key: int
    elements: int
    dtype: DType
    op: Op
    owner: int  # rank of the process with the key's shard, or of the worker that gathers it; or EVERYONE
    keep: bool = False  # the shard keeps the last result, which can be pulled
    is_published: bool = False  # only the worker in the owner's process contributes; all workers get its contribution

    @property
    def size_bytes(self) -> int:
        return self.elements * self.dtype.numpy.itemsize


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a complete round.  `array` is None if no worker had a value."""

    array: Array | None
    present: int
    absent: int


@dataclass(slots=True)
class Held:
    """Contribution that is not yet in the sum."""

    array: Array
    is_owned: bool  # may be overwritten; the local worker's gradient is not


class Round:
    """Contributions to one key at one step, and their sum.

    `release(array)` is called with the memory of each owned contribution once it is in the sum.
    """

    def __init__(self, spec: KeySpec, workers: int, release: Callable[[Array], None]) -> None:
        self.spec = spec
        self.present = 0
        self._workers = workers
        self._release = release
        self._contributed = bytearray(workers)  # by rank: whether it has contributed
        self._count = 0  # number of ranks that have contributed
        self._waiting: dict[int, Held | None] = {}  # contributions that are not in the sum yet, by rank
        self._next_rank = 0  # invariant: the contributions of all lower ranks are in the sum
        self._sum: Array | None = None

    def has(self, rank: int) -> bool:
        return bool(self._contributed[rank])

    def add(self, rank: int, array: Array | None, present: int = 0, *, is_owned: bool = False) -> None:
        assert not self._contributed[rank], f"rank {rank} contributed twice to key {self.spec.key}"
        self._contributed[rank] = True
        self._count += 1
        self._waiting[rank] = None if array is None else Held(array, is_owned)
        self.present |= present
        if len(self._waiting) >= FOLD_AT and self._count < self._workers:
            self._fold(self._take_run())

    def is_complete(self, absent: frozenset[int] = frozenset()) -> bool:
        return self._count + self._count_away(absent) == self._workers

    def missing(self, absent: frozenset[int] = frozenset()) -> list[int]:
        return [rank for rank in range(self._workers) if not self._contributed[rank] and rank not in absent]

    @QUIET
    def finish(
        self, absent: frozenset[int] = frozenset(), *, divide_by_active: bool = False, into: Array | None = None
    ) -> Outcome:
        """Return the result of a complete round; copy it `into` this memory if given."""
        away = self._count_away(absent)
        divisor = self._workers - (away if divide_by_active else 0)
        self._fold([self._waiting.pop(rank) for rank in sorted(self._waiting)], divisor=divisor, into=into)
        if self._sum is None:
            return Outcome(None, 0, away)
        if self._sum.dtype != self.spec.dtype.numpy:
            self._sum = self._sum.astype(self.spec.dtype.numpy)
            if into is not None:
                np.copyto(into, self._sum)
        return Outcome(self._sum, self.present, away)

    def _count_away(self, absent: frozenset[int]) -> int:
        return sum(not self._contributed[rank] for rank in absent)

    def _take_run(self) -> list[Held | None]:
        """Remove and return the contributions of consecutive ranks, starting at the next rank, if there are enough."""
        run = 0
        while self._next_rank + run in self._waiting:
            run += 1
        if run < FOLD_AT:
            return []
        self._next_rank += run
        return [self._waiting.pop(rank) for rank in range(self._next_rank - run, self._next_rank)]

    def _fold(self, waiting: list[Held | None], *, divisor: int = 1, into: Array | None = None) -> None:
        """Add these contributions to the sum.  A divisor is passed with the last ones only."""
        held = [item for item in waiting if item is not None]
        terms = [item.array for item in held]
        if self._sum is not None:
            terms.insert(0, self._sum)
        if not terms:
            return
        self._sum = self._choose_memory(held)
        if self.spec.op is Op.COPY:
            terms = terms[:1]
        fold(terms, self._sum, divisor=divisor if self.spec.op is Op.MEAN else 1, into=into)
        for item in held:
            if item.is_owned and item.array is not self._sum:
                self._release(item.array)

    def _choose_memory(self, held: list[Held]) -> Array:
        """Return memory for the sum: that of a contribution if it may be overwritten, which saves cache."""
        if self._sum is not None:
            return self._sum
        accumulator = self.spec.dtype.accumulator
        # Only one of the first two: a later contribution would be overwritten before it is read.
        owned = (item.array for item in held[:2] if item.is_owned and item.array.dtype == accumulator)
        memory = next(owned, None)
        return np.empty(self.spec.elements, accumulator) if memory is None else memory


@QUIET
def fold(terms: list[Array], total: Array, *, divisor: int = 1, into: Array | None = None) -> None:
    """Compute total = ((a + b) + c + ...) / divisor, block by block, in the type of the total.

    `total` may be one of the first two terms.  If `into` has the same type, each block is copied to it while it is
    still in the cache.
    """
    copies = into is not None and into.dtype == total.dtype
    for start in range(0, total.size, BLOCK_ELEMENTS):
        block = slice(start, start + BLOCK_ELEMENTS)
        target = total[block]
        if len(terms) > 1:
            np.add(terms[0][block], terms[1][block], out=target, dtype=total.dtype)
        elif terms[0] is not total:
            np.copyto(target, terms[0][block], casting="unsafe")
        for term in terms[2:]:
            np.add(target, term[block], out=target, dtype=total.dtype)
        if divisor > 1:
            np.divide(target, divisor, out=target)
        if copies:
            into[block] = target  # type: ignore[index]


def view_bytes(array: Array) -> Array:
    """Return a view of the array's bytes.  Works for every type; bfloat16, for one, has no buffer format."""
    return array.view(np.uint8)
