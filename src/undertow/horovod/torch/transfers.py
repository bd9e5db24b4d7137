"""How the bytes of a call travel: what this rank contributes, and what it gets.

In: arrays of this rank, slices as the coordinator has them laid out.  Out: contributions, and the
arrays of the result, or of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from undertow.core.flow import Contribution
from undertow.core.rounds import Array
from undertow.plan.slicing import Slice
from undertow.runtime.calls import Answer
from undertow.runtime.group import Group
from undertow.torch.broadcast import gather_parts, scatter_parts


class Sliced:
    """Arrays that the shards sum or copy.

    Without `sources` this rank contributes nothing, without `targets` it gets nothing; both may be the same.
    """

    def __init__(self, sources: Sequence[Array] | None, targets: Sequence[Array] | None) -> None:
        self._sources = sources
        self._targets = targets
        self._fused: list[tuple[Slice, Array]] = []  # results that are still to be taken apart

    def contribute(self, slices: Sequence[Slice], answer: Answer) -> list[Contribution]:
        return [self._contribute(item, answer) for item in slices]

    def _contribute(self, item: Slice, answer: Answer) -> Contribution:
        source = None if self._sources is None else gather_parts(item, self._sources)
        target: Array | None = None
        if self._targets is not None and item.is_fused:
            target = np.empty(item.spec.elements, item.spec.dtype.numpy) if source is None else source
            self._fused.append((item, target))
        elif self._targets is not None:
            target = gather_parts(item, self._targets)  # a view
        present = (1 << len(item.parts)) - 1 if source is not None else 0
        return Contribution(item.spec.key, source, target, present, answer)

    def land(self) -> None:
        """All results are there: put them into the targets."""
        for item, memory in self._fused:
            assert self._targets is not None
            scatter_parts(item, memory, self._targets)
        self._fused = []


class Gathered:
    """A piece of this rank for everyone, and what it gets of all."""

    def __init__(self, group: Group, piece: Array | None) -> None:
        self._group = group
        self._piece = piece
        self._contribution: Contribution | None = None

    def contribute(self, slices: Sequence[Slice], answer: Answer) -> list[Contribution]:
        self._contribution = _contribute(slices[0].spec.key, self._piece, answer)
        return [self._contribution]

    def received(self) -> AbstractContextManager[list[Array | None]]:
        """What each rank contributed, to be read inside the block."""
        return _lend(self._group, self._contribution)


class Scattered:
    """A piece of this rank for each rank, and what it gets of all."""

    def __init__(self, group: Group, pieces: Sequence[Array]) -> None:
        self._group = group
        self._pieces = pieces
        self._contributions: list[Contribution] = []

    def contribute(self, slices: Sequence[Slice], answer: Answer) -> list[Contribution]:
        self._contributions = [
            _contribute(item.spec.key, piece, answer) for item, piece in zip(slices, self._pieces, strict=True)
        ]
        return self._contributions

    def received(self) -> AbstractContextManager[list[Array | None]]:
        """What each rank had for this one, to be read inside the block."""
        return _lend(self._group, self._contributions[self._group.rank])


def _contribute(key: int, piece: Array | None, answer: Answer) -> Contribution:
    source = piece if piece is not None and piece.size else None
    return Contribution(key, source, None, int(piece is not None), answer)


@contextmanager
def _lend(group: Group, contribution: Contribution | None) -> Iterator[list[Array | None]]:
    """The pieces, whose memory is given back at the end of the block, however that comes."""
    assert contribution is not None
    pieces, empty = contribution.pieces, np.empty(0, np.uint8)
    try:
        yield [(empty if piece.array is None else piece.array) if piece.present else None for piece in pieces]
    finally:
        group.release([piece for rank, piece in enumerate(pieces) if rank != group.rank])
        contribution.pieces = ()
