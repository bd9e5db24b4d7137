"""Stages 3 and 8 for a gradient that everybody makes himself, out of what all workers know of it.

In: the parts of this worker.  Out: chunks of bytes to everybody; then the mean, made of everybody's.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch

from undertow.core.flow import Contribution
from undertow.plan.slicing import Slice
from undertow.runtime.group import Group
from undertow.runtime.waiting import Ticket
from undertow.torch.carriers import Home
from undertow.torch.pieces import Column, Known, pack, split, unpack
from undertow.torch.sources import Source

SAMPLED = 256  # elements


class InParts:
    """What gradients have in common that leave in parts."""

    def __init__(self, group: Group, index: int, home: Home, source: Source) -> None:
        self.members = (index,)
        self.group = group
        self.wholes = 0  # passes in which something came another way than through the layer
        self._passes = 0
        self._home = home
        self._source = source
        self._ticket = Ticket(0)
        self._priorities: Sequence[int] = ()

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        self._ticket, self._priorities = ticket, priorities
        self._passes += 1

    def uses_memory_of(self, index: int) -> bool:
        return False

    def take(self) -> Known:
        """The parts of this pass."""
        known = self._source.take()
        # In the first pass there may be some from before, when nobody wanted parts.
        self.wholes += known.whole is not None and self._passes > 1
        return known

    @property
    def priority(self) -> int:
        return self._priorities[self.members[0]]


class Gathered(InParts):
    """One gradient."""

    def __init__(self, group: Group, index: int, home: Home, slices: Sequence[Slice], source: Source) -> None:
        super().__init__(group, index, home, source)
        self.answers = len(slices)
        self.samples = False  # whether the next results are looked at, see `digest`
        self.digest: int | None = None  # of a result, to be compared with that of other ranks
        self._keys = [item.spec.key for item in slices]
        self._contributions: list[Contribution] = []

    def send(self, index: int, fresh: torch.Tensor | None) -> None:
        blob = pack(self.take(), self._home.copier, self._home.parameter.device)
        chunks = split(blob.array, len(self._keys))
        self._contributions = [
            Contribution(key, chunk, None, blob.number, self._ticket.answer, self.priority)
            for key, chunk in zip(self._keys, chunks, strict=True)
        ]
        self.group.contribute(self._contributions, blob.is_ready)

    def land(self, index: int) -> None:
        columns, shape = self._source.form.columns, self._home.parameter.shape
        known = [read(self._contributions, rank, columns, shape, self._home.dtype) for rank in range(self.group.size)]
        result = self._source.make(known, self._home.dtype)
        release(self.group, self._contributions)
        self._contributions = []
        if result is not None:
            self.digest = find_digest(result) if self.samples else None
            self._home.replace(result)


def find_digest(gradient: torch.Tensor) -> int:
    """Of a few samples: products that are made in different ways differ in most of their elements."""
    values = gradient._values() if gradient.is_sparse else gradient
    flat = values.reshape(-1)
    starts = (0, flat.numel() // 2, max(0, flat.numel() - SAMPLED))
    samples = torch.cat([flat[start : start + SAMPLED] for start in starts]).cpu()
    return zlib.crc32(samples.view(torch.uint8).numpy().tobytes())


def read(
    contributions: Sequence[Contribution], rank: int, columns: Sequence[Column], shape: torch.Size, dtype: torch.dtype
) -> Known:
    """What one rank has contributed, chunk by chunk."""
    pieces = [contribution.pieces[rank] for contribution in contributions]
    return unpack([piece.array for piece in pieces], pieces[0].present, columns, shape, dtype)


def release(group: Group, contributions: Sequence[Contribution]) -> None:
    """Nobody reads any more what others have contributed."""
    for contribution in contributions:
        group.release([piece for rank, piece in enumerate(contribution.pieces) if rank != group.rank])
