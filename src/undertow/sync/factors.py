"""Stages 3 and 8 of the schemes `factors` and `rows`: every worker computes the mean from all workers' factors.

In: this worker's factors.  Out: chunks of bytes to every other worker; then the mean, computed from the chunks of all
(Poseidon's sufficient factor broadcasting).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from undertow.engine.client.waiting import Ticket
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Array
from undertow.engine.core.slicing import Slice
from undertow.engine.interface import Group
from undertow.sync.broadcast import release_gathered
from undertow.sync.payload import split, unpack
from undertow.sync.slot import FactorSlot, Field, WorkerFactors


class FactoredSyncer:
    """The common part of syncers that send a gradient as factors."""

    def __init__(self, group: Group, index: int, slot: FactorSlot[Any, Any]) -> None:
        self.members = (index,)
        self.wholes = 0  # passes in which part of the gradient did not come through the layer
        self._group = group
        self._slot = slot
        self._passes = 0
        self._ticket = Ticket(0)
        self._priority = 0

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        self._ticket, self._priority = ticket, priorities[self.members[0]]
        self._passes += 1

    def uses_memory_of(self, index: int) -> bool:
        return False

    def _take(self) -> WorkerFactors[Any]:
        factors = self._slot.take_factors()
        # In the first pass a whole gradient may be left over from before the layer handed over factors.
        self.wholes += factors.whole is not None and self._passes > 1
        return factors


class FactorsSyncer(FactoredSyncer):
    """A gradient whose factors go to every worker."""

    def __init__(self, group: Group, index: int, slot: FactorSlot[Any, Any], slices: Sequence[Slice]) -> None:
        super().__init__(group, index, slot)
        self.answers = len(slices)
        self.samples = False  # whether the next results are sampled for `digest`
        self.digest: int | None = None  # of the sampled result, for comparison with other ranks
        self._keys = [item.spec.key for item in slices]
        self._contributions: list[Contribution] = []

    def send(self, index: int, hint: Any) -> None:
        payload = self._slot.pack(self._take())
        chunks = split(payload.array, len(self._keys))
        self._contributions = [
            Contribution(key, chunk, None, payload.descriptor, self._ticket.answer, self._priority)
            for key, chunk in zip(self._keys, chunks, strict=True)
        ]
        self._group.contribute(self._contributions, payload.is_ready)

    def land(self, index: int) -> None:
        slot, contributions = self._slot, self._contributions
        result = slot.combine(
            [read(contributions, rank, slot.fields, slot.shape, slot.dtype) for rank in range(self._group.size)]
        )
        release_gathered(self._group, contributions)
        self._contributions = []
        if result is not None:
            self.digest = zlib.crc32(slot.sample(result)) if self.samples else None
            slot.replace(result)


def read(
    contributions: Sequence[Contribution],
    rank: int,
    fields: Sequence[Field],
    shape: Sequence[int],
    dtype: np.dtype[Any],
) -> WorkerFactors[Array]:
    """Return the factors that one rank contributed in chunks."""
    chunks = [contribution.gathered[rank] for contribution in contributions]
    return unpack([chunk.array for chunk in chunks], chunks[0].present, fields, shape, dtype)
