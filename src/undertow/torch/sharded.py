"""Stages 3, 6 and 8 for a gradient that the shards make: each one some rows of it, out of everybody's factors.

In: the factors of this worker.  Out: the activations, and some columns of the deltas, to each shard; there
their product, beside the training; then the rows of all shards in place.
The rows come back through ordinary rounds, to which their maker alone contributes, and whoever has a
gradient that came another way than through the layer: nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from undertow.core.flow import Contribution
from undertow.core.rounds import Op
from undertow.plan.slicing import Slice, split_rows
from undertow.runtime.group import Group
from undertow.runtime.waiting import Ticket
from undertow.torch.carriers import Home, all_done
from undertow.torch.gathered import read, release
from undertow.torch.pieces import Blob, Column, Known, pack, split
from undertow.torch.sources import Source
from undertow.torch.tensors import as_array, dtype_code


class _Shard(NamedTuple):
    """What goes to one shard, and what it makes."""

    rank: int
    rows: range
    keys: list[int]  # of the activations, in chunks, which all shards get; then of its own columns of the deltas
    slices: list[Slice]  # of its rows


class Sharded:
    """One gradient."""

    def __init__(self, group: Group, index: int, home: Home, slices: Sequence[Slice], source: Source) -> None:
        self.members = (index,)
        self.wholes = 0  # passes in which something came another way than through the layer
        self.group = group
        self._home = home
        self._source = source
        self._height, self._depth = home.parameter.shape
        self._shards = _find_shards(slices, self._height, group.size)
        self.answers = sum(len(shard.slices) for shard in self._shards)
        self._ticket = Ticket(0)
        self._priorities: Sequence[int] = ()
        self._result = torch.empty(0)  # flat, on the host
        self._whole: torch.Tensor | None = None  # flat, on the host
        self._rows: list[Contribution] = []

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        self._ticket, self._priorities = ticket, priorities
        self._rows = []

    def send(self, index: int, fresh: torch.Tensor | None) -> None:
        known = self._source.take()
        self.wholes += known.whole is not None
        self._whole = None if known.whole is None else known.whole.detach().to("cpu", copy=True).view(-1)
        self._result = self._home.make_host_memory(self._height * self._depth)
        activations, *deltas = self._pack(known)
        for shard, columns in zip(self._shards, deltas, strict=True):
            self._send_factors(shard, activations, columns)
            if shard.rank != self.group.rank:
                self._send_rows(shard, self._whole, 0)

    def uses_memory_of(self, index: int) -> bool:
        return False

    def land(self, index: int) -> None:
        if any(contribution.present for contribution in self._rows):
            self._home.replace(self._result.view(self._height, self._depth).to(self._home.parameter.device))
        self._result = torch.empty(0)

    def _pack(self, known: Known) -> list[Blob]:
        """The activations, for all shards; then the columns of the deltas for each."""
        if not known.parts:
            return [Blob(None, int(known.is_present))] * (1 + len(self._shards))
        activations, deltas = known.parts
        parts = [activations, *(deltas[:, shard.rows.start : shard.rows.stop] for shard in self._shards)]
        return [pack(Known((part,)), self._home.copier, self._home.parameter.device) for part in parts]

    def _send_factors(self, shard: _Shard, activations: Blob, columns: Blob) -> None:
        own = _Own(self, shard) if shard.rank == self.group.rank else None
        arrays = [*split(activations.array, len(shard.keys) - 1), columns.array]
        numbers = [activations.number] * (len(shard.keys) - 1) + [columns.number]
        pieces = [
            Contribution(key, array, None, number, _ignore if own is None else own.arrived, self.priority)
            for key, array, number in zip(shard.keys, arrays, numbers, strict=True)
        ]
        if own is not None:
            own.pieces = pieces
        copies = [blob.is_ready for blob in (activations, columns) if blob.is_ready is not None]
        self.group.contribute(pieces, all_done(copies))

    def _send_rows(self, shard: _Shard, source: torch.Tensor | None, offset: int) -> None:
        """Contribute to the rounds of a shard's rows: of a flat gradient that begins there, or nothing."""
        dtype = dtype_code(self._home.dtype)
        given = None if source is None else as_array(source, dtype)
        target = as_array(self._result, dtype)
        contributions = []
        for item in shard.slices:
            start, elements = item.parts[0].offset, item.spec.elements
            sent = None if given is None else given[start - offset : start - offset + elements]
            wanted, present = target[start : start + elements], int(sent is not None)
            contributions.append(Contribution(item.spec.key, sent, wanted, present, self._ticket.answer, self.priority))
        self._rows += contributions
        self.group.contribute(contributions)

    @property
    def priority(self) -> int:
        return self._priorities[self.members[0]]

    def make_rows(self, shard: _Shard, pieces: Sequence[Contribution]) -> None:
        """At the shard, beside engine and training: multiply what has come, and let everybody have it."""
        shape, dtype = self._home.parameter.shape, self._home.dtype
        activations = [read(pieces[:-1], r, [Column(self._depth)], shape, dtype) for r in range(self.group.size)]
        deltas = [read(pieces[-1:], r, [Column(len(shard.rows))], shape, dtype) for r in range(self.group.size)]
        rows = None
        if any(known.is_present for known in activations):
            rows = _multiply(activations, deltas, torch.Size((len(shard.rows), self._depth)), dtype)
        release(self.group, pieces)
        offset = shard.rows.start * self._depth
        if rows is not None and self._whole is not None:
            rows += self._whole[offset : offset + rows.numel()]
        self._send_rows(shard, rows, offset)


class _Own:
    """The factors for this rank's own shard, which come key by key."""

    def __init__(self, gradient: Sharded, shard: _Shard) -> None:
        self.pieces: list[Contribution] = []
        self._gradient = gradient
        self._shard = shard
        self._left = len(shard.keys)

    def arrived(self, contribution: Contribution) -> None:
        """In the engine thread."""
        self._left -= 1
        if not self._left:
            self._gradient.group.aside(lambda: self._gradient.make_rows(self._shard, self.pieces))


def _multiply(
    activations: Sequence[Known], deltas: Sequence[Known], size: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    """The sum of all workers' products, flat."""
    wide = torch.promote_types(dtype, torch.float32)
    joined = [[known.parts[0].to(wide) for known in column if known.parts] for column in (deltas, activations)]
    if not joined[0]:
        return torch.zeros(size.numel(), dtype=dtype)
    left, right = (torch.cat(column) for column in joined)
    return left.t().mm(right).to(dtype).view(-1)


def _find_shards(slices: Sequence[Slice], height: int, shards: int) -> list[_Shard]:
    """As the slices were cut."""
    found = []
    for rank, rows in enumerate(split_rows(height, shards)):
        own = [item for item in slices if item.spec.shard == rank]
        keys = [item.spec.key for item in own if item.spec.op is Op.GATHER]
        if rows:
            found.append(_Shard(rank, rows, keys, [item for item in own if item.spec.op is not Op.GATHER]))
    return found


def _ignore(contribution: Contribution) -> None:
    """That a shard has got its factors is no news."""
