"""Stage 3, slicing: tensors become slices of about the same size.

In: tensors in the order in which their gradients are expected.  Out: slices, each with the ranges of tensors
that it carries.  Large tensors are cut.  Tiny tensors of the same type are fused, even if large ones lie between
them, because a message costs the same whether it carries ten bytes or ten thousand.
A fused slice leaves with its last tensor, which the next forward pass needs first.  The other tensors are needed
later, so the wait costs nothing unless the wire would have been idle meanwhile.
The ranges cover every element of every tensor exactly once.  Each slice is placed on the shard with the fewest bytes
so far: equal slices are placed round-robin, and unequal slices load all links equally.

A tensor's factors may be sent instead of the tensor.  Their size is not known in advance, so they are *gathered*: by
every worker, or by the shards, each of which then computes some rows of the tensor.  Such a tensor has slices without
elements, one for each chunk of the factors, and, if the shards compute it, slices of their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from undertow.decoding import Count
from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import EVERYONE, KeySpec, Op
from undertow.sizing import ALIGNMENT

# A fused slice has one bit per tensor in the frame's `present` field.
MAX_FUSED_TENSORS = 64
# A fused slice is at most this fraction of a slice, because its last tensor delays all the others.
FUSED_SHARE = 4
MOST_FUSED_BYTES = 256 << 10
MOST_KEYS = 1 << 32  # the frame's key field has four bytes


class TensorSpec(msgspec.Struct, frozen=True):
    """Description of a tensor, which must be the same on all ranks."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    elements: Count  # number of elements of `dtype`; the number of bytes if it is sent as BYTES
    label: str = ""  # the framework's name of the type, for messages

    @property
    def size_bytes(self) -> int:
        return self.elements * self.dtype.numpy.itemsize

    def __str__(self) -> str:
        return f"{self.name!r} {list(self.shape)} {self.label or self.dtype.numpy}"


@dataclass(frozen=True, slots=True)
class TensorRange:
    """Range of a tensor's elements, starting at `offset`, and its start `at` in the slice."""

    tensor: int
    offset: int
    elements: int
    at: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Key with the ranges of tensors that it carries."""

    spec: KeySpec
    ranges: tuple[TensorRange, ...]

    @property
    def is_fused(self) -> bool:
        return len(self.ranges) > 1


class Cut(msgspec.Struct, frozen=True):
    """Coordinator's decision on how all ranks cut the tensors of a table."""

    first_key: Annotated[int, msgspec.Meta(ge=0, lt=MOST_KEYS)]
    slice_bytes: Annotated[int, msgspec.Meta(ge=ALIGNMENT)]


class Chunking(NamedTuple):
    """Number of chunks in which a tensor's factors are sent, to every worker or to the shards."""

    chunks: int
    to_shards: bool = False


class Placement:
    """Assignment of slices to shards by load.  `owners` has the rank of each shard's process (see `Shape.owners`).

    Equally loaded shards are chosen in turn, beginning with shard `start`, so that small tables can begin elsewhere.
    """

    def __init__(self, owners: Sequence[int], *, start: int = 0) -> None:
        self.owners = owners
        shards = len(owners)
        self._load_bytes = [0] * shards
        self._order = [(start + shard) % shards for shard in range(shards)]

    def place(self, size_bytes: int) -> int:
        """Place a slice of this size; return the rank of its owner."""
        shard = min(self._order, key=self._load_bytes.__getitem__)
        self._load_bytes[shard] += size_bytes
        return self.owners[shard]


def cut(
    tensors: Sequence[TensorSpec],
    how: Cut,
    *,
    op: Op,
    keep: bool = False,
    placement: Placement,
    chunkings: Mapping[int, Chunking] | None = None,
) -> list[Slice]:
    """Return the slices of these tensors, with consecutive keys that start at `how.first_key`.

    `chunkings` has the tensors that are gathered, by index.  With `Op.GATHER` all are gathered, in one chunk each.
    """
    if op is Op.GATHER:
        chunkings = dict.fromkeys(range(len(tensors)), Chunking(1))
    slices = []
    drafts = _draft(tensors, how.slice_bytes, chunkings or {}, placement.owners)
    for key, draft in enumerate(drafts, start=how.first_key):
        if draft.is_gathered:
            spec = KeySpec(key, 0, DType.BYTES, Op.GATHER, draft.owner)
        else:
            elements = sum(each.elements for each in draft.ranges)
            owner = draft.owner
            if owner == EVERYONE:
                owner = placement.place(elements * draft.dtype.numpy.itemsize)
            spec = KeySpec(key, elements, draft.dtype, op, owner, keep, is_published=draft.owner != EVERYONE)
        slices.append(Slice(spec, tuple(draft.ranges)))
    return slices


def count_keys(tensors: Sequence[TensorSpec], slice_bytes: int, shards: int) -> int:
    """Return the largest number of slices that these tensors can have under any plan."""
    return sum(2 * count_most(tensor, slice_bytes) + 3 * shards * (len(tensor.shape) > 1) for tensor in tensors)


def count_slices(tensors: Sequence[TensorSpec], slice_bytes: int) -> int:
    """Return the largest number of slices that these tensors can have if all are summed."""
    return sum(count_most(tensor, slice_bytes) for tensor in tensors)


def count_most(tensor: TensorSpec, slice_bytes: int) -> int:
    """Return the largest number of slices that a tensor can have; also the largest number of chunks."""
    return tensor.size_bytes // slice_bytes + 1


def split_rows(rows: int, shards: int) -> list[range]:
    """Return the rows of a tensor that each shard computes."""
    return [range(rows * shard // shards, rows * (shard + 1) // shards) for shard in range(shards)]


class ShardRows(NamedTuple):
    """Keys that carry a tensor's factors to one shard, and slices of the rows that it computes."""

    rank: int  # of the shard's process
    rows: range
    keys: list[int]  # first those of the activations' chunks, which all shards get; last that of its deltas' columns
    slices: list[Slice]


def find_shards(slices: Sequence[Slice], height: int, owners: Sequence[int]) -> list[ShardRows]:
    """Return the shards that compute rows of a tensor of this height, which has these slices."""
    shards = zip(owners, split_rows(height, len(owners)), strict=True)
    found = {rank: ShardRows(rank, rows, [], []) for rank, rows in shards if rows}
    for item in slices:
        shard = found[item.spec.owner]
        if item.spec.op is Op.GATHER:
            shard.keys.append(item.spec.key)
        else:
            shard.slices.append(item)
    return list(found.values())


class _Draft(NamedTuple):
    """Slice that has no key yet.  It has an owner only if it belongs to a shard's rows of a tensor."""

    dtype: DType
    ranges: Sequence[TensorRange]
    owner: int = EVERYONE
    is_gathered: bool = False


def _draft(
    tensors: Sequence[TensorSpec], slice_bytes: int, chunkings: Mapping[int, Chunking], owners: Sequence[int]
) -> Iterator[_Draft]:
    fuse_bytes = min(slice_bytes, MOST_FUSED_BYTES * FUSED_SHARE) // FUSED_SHARE
    fused: list[TensorRange] = []
    for index, tensor in enumerate(tensors):
        itemsize = tensor.dtype.numpy.itemsize
        if index in chunkings:
            yield from _draft_chunks(index, tensor, chunkings[index], slice_bytes // itemsize, owners)
            continue
        if tensor.size_bytes > fuse_bytes:
            for each in _cut_range(index, range(tensor.elements), slice_bytes // itemsize):
                yield _Draft(tensor.dtype, [each])
            continue
        filled = fused[-1].at + fused[-1].elements if fused else 0
        fits = (filled + tensor.elements) * itemsize <= fuse_bytes and len(fused) < MAX_FUSED_TENSORS
        if fused and not (fits and tensors[fused[0].tensor].dtype is tensor.dtype):
            yield _Draft(tensors[fused[0].tensor].dtype, fused)
            fused, filled = [], 0
        if tensor.elements:
            fused.append(TensorRange(index, 0, tensor.elements, filled))
    if fused:
        yield _Draft(tensors[fused[0].tensor].dtype, fused)


def _draft_chunks(
    index: int, tensor: TensorSpec, chunking: Chunking, most: int, owners: Sequence[int]
) -> Iterator[_Draft]:
    chunks = [TensorRange(index, chunk, 0, 0) for chunk in range(chunking.chunks)]
    if not chunking.to_shards:
        for chunk in chunks:
            yield _Draft(DType.BYTES, [chunk], is_gathered=True)
        return
    rows = split_rows(tensor.shape[0], len(owners))
    columns = tensor.elements // tensor.shape[0]
    # To each shard: the activations, in chunks, and the shard's own columns of the deltas.
    for owner in (owner for owner, own in zip(owners, rows, strict=True) if own):
        for chunk in [*chunks, TensorRange(index, chunking.chunks, 0, 0)]:
            yield _Draft(DType.BYTES, [chunk], owner, is_gathered=True)
    for owner, own in zip(owners, rows, strict=True):
        for each in _cut_range(index, range(own.start * columns, own.stop * columns), most):
            yield _Draft(tensor.dtype, [each], owner)


def _cut_range(index: int, elements: range, most: int) -> Iterator[TensorRange]:
    for offset in range(elements.start, elements.stop, most):
        yield TensorRange(index, offset, min(most, elements.stop - offset), 0)
