"""Divides the batches of one process among the ranks.

In: the batches of indices that one process would take, the same on all ranks.
Out: this rank's shares, each with its weight.  All ranks have the same number of shares, and no sample is left out or
taken twice.  With these weights, the mean of all ranks' gradients is the gradient of the whole batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BatchShare:
    """The samples of one batch that this rank computes."""

    indices: list[Any]
    weight: float  # 1 if the shares of all ranks have the same size


@dataclass(frozen=True, kw_only=True)
class ShareRule:
    """A rule for sharing batches: each batch is split among the ranks, or each rank takes one batch of `size`."""

    rank: int
    size: int
    is_split: bool
    drops_last: bool = False  # whether to drop batches at the end if there are fewer than ranks

    def count(self, batches: int) -> int:
        """Return the number of shares of each rank for this number of batches."""
        if self.is_split:
            return batches
        return batches // self.size if self.drops_last else -(-batches // self.size)

    def divide(self, batches: Iterable[Sequence[Any]]) -> Iterator[BatchShare]:
        source = iter(batches)
        while group := list(itertools.islice(source, 1 if self.is_split else self.size)):
            is_full = not self.is_split and len(group) == self.size
            if not is_full and not self.is_split and self.drops_last:
                return
            lists = [list(batch) for batch in group] if is_full else cut_evenly([*itertools.chain(*group)], self.size)
            yield self._weigh(lists)

    def _weigh(self, lists: Sequence[list[Any]]) -> BatchShare:
        own = lists[self.rank]
        weight = self.size * len(own) / sum(map(len, lists))
        # A rank without samples computes one with weight 0, so that it takes part in the step.
        return BatchShare(own, weight) if own else BatchShare(lists[0][:1], 0.0)


def cut_evenly(indices: Sequence[Any], count: int) -> list[list[Any]]:
    """Cut into `count` contiguous lists whose lengths differ by at most one, longer ones first."""
    least, more = divmod(len(indices), count)
    ends = [*itertools.accumulate(least + (number < more) for number in range(count))]
    return [list(indices[start:end]) for start, end in itertools.pairwise([0, *ends])]


def stride(samples: Iterable[Any], *, rank: int, size: int) -> Iterator[Any]:
    """Yield every `size`-th sample of a stream, as long as there is one for every rank."""
    source = iter(samples)
    while len(group := list(itertools.islice(source, size))) == size:
        yield group[rank]
