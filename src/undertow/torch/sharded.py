"""Stages 3, 6 and 8 for a gradient that the shards make: each one some rows of it, out of everybody's factors.

In: the factors of this worker.  Out: the activations, and some columns of the deltas, to each shard; there
their product, beside the training; then the rows of all shards in place.
Rows of a gradient that came another way than through the layer travel along with the factors: nothing is lost.
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
from undertow.torch.gathered import InParts, read, release
from undertow.torch.pieces import Blob, Column, Known, pack, split
from undertow.torch.sources import Source
from undertow.torch.tensors import as_array, dtype_code


class _Shard(NamedTuple):
    """What goes to one shard, and what it makes."""

    rank: int
    rows: range
    keys: list[int]  # of the activations, in chunks, which all shards get; then of its own columns of the deltas
    slices: list[Slice]  # of its rows


class Sharded(InParts):
    """One gradient."""

    def __init__(self, group: Group, index: int, home: Home, slices: Sequence[Slice], source: Source) -> None:
        super().__init__(group, index, home, source)
        group.start_helper()
        self._height, self._depth = home.parameter.shape
        # All begin with another shard: none is the target of all at once.
        shards = _find_shards(slices, self._height, group.size)
        self._shards = sorted(shards, key=lambda shard: (shard.rank - group.rank) % group.size)
        self.answers = sum(len(shard.slices) for shard in self._shards)
        self._result = torch.empty(0)  # flat, on the host
        self._rows: list[Contribution] = []

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        super().begin(ticket, priorities)
        self._rows = []

    def send(self, index: int, fresh: torch.Tensor | None) -> None:
        known = self.take()
        self._result = self._home.make_host_memory(self._height * self._depth)
        # First of all: a shard that has everybody's factors answers unasked.
        for shard in self._shards:
            if shard.rank != self.group.rank:
                self._await_rows(shard)
        activations, *deltas = self._pack(known)
        for shard, columns in zip(self._shards, deltas, strict=True):
            self._send_factors(shard, activations, columns)

    def land(self, index: int) -> None:
        if any(contribution.present for contribution in self._rows):
            self._home.replace(self._result.view(self._height, self._depth).to(self._home.parameter.device))
        self._result = torch.empty(0)

    def _pack(self, known: Known) -> list[Blob]:
        """The activations, for all shards; then for each the columns of the deltas, and rows of the whole."""
        pieces = [known._replace(parts=known.parts[:1], whole=None)]
        for shard in self._shards:
            rows = slice(shard.rows.start, shard.rows.stop)
            deltas = tuple(part[:, rows] for part in known.parts[1:])
            pieces.append(known._replace(parts=deltas, whole=None if known.whole is None else known.whole[rows]))
        return [pack(piece, self._home.copier, self._home.parameter.device) for piece in pieces]

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

    def _await_rows(self, shard: _Shard, made: torch.Tensor | None = None) -> None:
        """Let a shard's rows come; those of this rank's own shard are `made`."""
        dtype = dtype_code(self._home.dtype)
        source, target = None if made is None else as_array(made, dtype), as_array(self._result, dtype)
        contributions = []
        for item in shard.slices:
            offset, elements = item.parts[0].offset, item.spec.elements
            start = offset - shard.rows.start * self._depth
            sent = None if source is None else source[start : start + elements]
            wanted, present = target[offset : offset + elements], int(sent is not None)
            contributions.append(Contribution(item.spec.key, sent, wanted, present, self._ticket.answer, self.priority))
        self._rows += contributions
        self.group.contribute(contributions)

    def make_rows(self, shard: _Shard, pieces: Sequence[Contribution]) -> None:
        """At the shard, beside engine and training: multiply what has come, and let everybody have it."""
        size, dtype, workers = torch.Size((len(shard.rows), self._depth)), self._home.dtype, range(self.group.size)
        activations = [read(pieces[:-1], rank, [Column(self._depth)], size, dtype) for rank in workers]
        deltas = [read(pieces[-1:], rank, [Column(len(shard.rows))], size, dtype) for rank in workers]
        rows = None
        if any(known.is_present for known in deltas):
            rows = _multiply(activations, deltas, size, dtype)
        release(self.group, pieces)
        self._await_rows(shard, rows)


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
            pieces, self.pieces = self.pieces, []  # which lead back here
            self._gradient.group.aside(lambda: self._gradient.make_rows(self._shard, pieces))


def _multiply(
    activations: Sequence[Known], deltas: Sequence[Known], size: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    """The mean of all workers' rows, flat."""
    wide, workers = torch.promote_types(dtype, torch.float32), len(deltas)
    rows = torch.zeros(size, dtype=wide)
    joined = [[known.parts[0].to(wide) for known in column if known.parts] for column in (deltas, activations)]
    if joined[0]:
        left, right = (torch.cat(column) for column in joined)
        torch.addmm(rows, left.t(), right, beta=0, alpha=1 / workers, out=rows)
    for known in deltas:
        if known.whole is not None:
            rows.add_(known.whole, alpha=1 / workers)
    return rows.to(dtype).view(-1)


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
