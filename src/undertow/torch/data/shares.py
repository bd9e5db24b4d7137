"""Each rank's share of the batches of one process.

In: the batches of indices that one process would have taken, the same on all ranks.
Out: this rank's part of each, and its weight.  All ranks have the same number of parts, nothing is left out and nothing
taken twice: the mean of all ranks' gradients, so weighted, is that of the whole batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Part:
    """Of one batch of all ranks."""

    indices: list[Any]
    weight: float  # 1: as large as all others


@dataclass(frozen=True, kw_only=True)
class Cutting:
    """How batches are shared: each one is split, or each rank takes one of as many as there are ranks."""

    rank: int
    size: int
    is_split: bool
    drops_last: bool = False  # what does not fill a batch of all ranks

    def count(self, batches: int) -> int:
        """How many parts each rank has of so many batches."""
        if self.is_split:
            return batches
        return batches // self.size if self.drops_last else -(-batches // self.size)

    def cut(self, batches: Iterable[Sequence[Any]]) -> Iterator[Part]:
        """This rank's parts."""
        source = iter(batches)
        while group := list(itertools.islice(source, 1 if self.is_split else self.size)):
            is_full = not self.is_split and len(group) == self.size
            if not is_full and not self.is_split and self.drops_last:
                return
            parts = [list(batch) for batch in group] if is_full else cut_evenly([*itertools.chain(*group)], self.size)
            yield self._weigh(parts)

    def _weigh(self, parts: Sequence[list[Any]]) -> Part:
        own = parts[self.rank]
        weight = self.size * len(own) / sum(map(len, parts))
        # A rank without a sample computes one all the same, so that it takes part, and it counts for nothing.
        return Part(own, weight) if own else Part(parts[0][:1], 0.0)


def cut_evenly(indices: Sequence[Any], parts: int) -> list[list[Any]]:
    """Contiguous parts; the first ones have one more where it does not come out even."""
    least, more = divmod(len(indices), parts)
    ends = [*itertools.accumulate(least + (part < more) for part in range(parts))]
    return [list(indices[start:end]) for start, end in itertools.pairwise([0, *ends])]


def stride(samples: Iterable[Any], *, rank: int, size: int) -> Iterator[Any]:
    """Every `size`-th sample of a stream, as long as there is one for everybody."""
    source = iter(samples)
    while len(group := list(itertools.islice(source, size))) == size:
        yield group[rank]
