"""Stages 3, 6 and 8 of the scheme `factors-to-shard`: each shard computes some rows of the mean from all factors.

In: this worker's factors.  Out: the first factor (activations) to all shards, and to each shard its columns of the
second (deltas); the helper thread of a shard multiplies them; then the gradient, from the rows of all shards (after
Adam, OSDI 2014).
Rows of a whole gradient are sent along with the factors, so nothing is lost.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from undertow.engine.client.waiting import Ticket
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Array
from undertow.engine.core.slicing import ShardRows, Slice, find_shards
from undertow.engine.interface import Group
from undertow.sync.broadcast import release_gathered
from undertow.sync.factors import FactoredSyncer, read
from undertow.sync.payload import split
from undertow.sync.slot import FactorSlot, Field, Payload
from undertow.sync.syncers import all_ready


class FactorsToShardSyncer(FactoredSyncer):
    """A gradient whose rows are computed by the shards."""

    def __init__(self, group: Group, index: int, slot: FactorSlot[Any, Any], slices: Sequence[Slice]) -> None:
        super().__init__(group, index, slot)
        group.start_helper()
        self._height, self._depth = slot.shape
        # Each worker starts with a different shard, so that no shard is the target of all at once.
        shards = find_shards(slices, self._height, group.shape.owners)
        self._shards = sorted(shards, key=lambda shard: group.shape.distance(shard.rank))
        self.answers = sum(len(shard.slices) for shard in self._shards)
        self._result: Any = None  # flat, on the host
        self._rows: list[Contribution] = []

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        super().begin(ticket, priorities)
        self._rows = []

    def send(self, index: int, hint: Any) -> None:
        factors = self._take()
        self._result = self._slot.allocate(self._height * self._depth)
        # Before any factors are sent: a shard answers without a request once it has the factors of all workers.
        for shard in self._shards:
            if shard.rank != self._group.rank:
                self._await_rows(shard)
        activations = self._slot.pack(factors._replace(factors=factors.factors[:1], whole=None))
        columns = [self._slot.pack(self._slot.split_rows(factors, shard.rows)) for shard in self._shards]
        for shard, own_columns in zip(self._shards, columns, strict=True):
            self._send_factors(shard, activations, own_columns)

    def land(self, index: int) -> None:
        if any(contribution.present for contribution in self._rows):
            self._slot.replace_from(self._result)
        self._result = None

    def _send_factors(self, shard: ShardRows, activations: Payload, columns: Payload) -> None:
        contributions: list[Contribution] = []
        answer = _ignore
        if shard.rank == self._group.rank:
            compute = functools.partial(self._compute_rows, shard, contributions)
            answer = Ticket(len(shard.keys), lambda: self._group.aside(compute)).answer
        arrays = [*split(activations.array, len(shard.keys) - 1), columns.array]
        descriptors = [activations.descriptor] * (len(shard.keys) - 1) + [columns.descriptor]
        contributions += [
            Contribution(key, array, None, descriptor, answer, self._priority)
            for key, array, descriptor in zip(shard.keys, arrays, descriptors, strict=True)
        ]
        self._group.contribute(contributions, all_ready([activations.is_ready, columns.is_ready]))

    def _await_rows(self, shard: ShardRows, computed: Array | None = None) -> None:
        """Join the rounds of a shard's rows, contributing `computed` if the shard is this rank's own."""
        target = self._slot.as_array(self._result)
        contributions = []
        for item in shard.slices:
            offset, elements = item.ranges[0].offset, item.spec.elements
            start = offset - shard.rows.start * self._depth
            sent = None if computed is None else computed[start : start + elements]
            wanted, present = target[offset : offset + elements], int(sent is not None)
            contributions.append(
                Contribution(item.spec.key, sent, wanted, present, self._ticket.answer, self._priority)
            )
        self._rows += contributions
        self._group.contribute(contributions)

    def _compute_rows(self, shard: ShardRows, contributions: Sequence[Contribution]) -> None:
        """Compute the rows of this rank's shard, all of whose factors have arrived.  Called in the helper thread."""
        shape, dtype, workers = (len(shard.rows), self._depth), self._slot.dtype, range(self._group.size)
        first, others = [Field(self._depth)], [Field(len(shard.rows))]
        activations = [read(contributions[:-1], rank, first, shape, dtype) for rank in workers]
        deltas = [read(contributions[-1:], rank, others, shape, dtype) for rank in workers]
        has_gradient = any(one.is_present for one in deltas)
        rows = self._slot.multiply(activations, deltas, shard.rows) if has_gradient else None
        release_gathered(self._group, contributions)
        self._await_rows(shard, rows)


def _ignore(contribution: Contribution) -> None:
    """Do nothing when another shard has all factors: its rows are the result."""
