"""Stage 3, slicing: tensors become slices of about the same size.

In: tensors in the order in which their gradients are expected.  Out: slices, each with
its parts.  Large tensors are cut; tiny ones of one type are fused with the next tiny ones, large
ones in between or not, because a message costs the same whether it carries ten bytes or ten thousand.
A fused slice leaves with its last tensor, which the next forward pass needs first of all: the others,
needed later, lose nothing by it unless the wire would have been idle in between.
The parts cover every element of every tensor exactly once.

A tensor may also travel in parts whose size is not known before: they are *gathered*, by everybody or
by the shards, each of which then makes some rows of the tensor.  Such a tensor has slices without
elements, one for each chunk of the parts, and, where the shards make it, slices of their rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from undertow.core.decoding import Count
from undertow.core.dtypes import DType
from undertow.core.rounds import EVERYONE, KeySpec, Op
from undertow.plan.placement import Placement
from undertow.plan.sizing import ALIGNMENT

# A fused slice has one bit per tensor in the frame's `present` field.
MAX_FUSED_TENSORS = 64
# Fused slices stay below a whole one: their last tensor holds up all the others.
FUSED_SHARE = 4
MOST_FUSED_BYTES = 256 << 10
MOST_KEYS = 1 << 32  # a frame has four bytes for a key


class TensorSpec(msgspec.Struct, frozen=True):
    """A tensor as all ranks must have it."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    elements: Count  # of `dtype`: the tensor's bytes where it travels as BYTES
    label: str = ""  # the framework's own name of the type, for messages

    def __str__(self) -> str:
        return f"{self.name!r} {list(self.shape)} {self.label or self.dtype.numpy}"


@dataclass(frozen=True, slots=True)
class Part:
    """`elements` of a tensor from `offset` on, found at `at` of its slice."""

    tensor: int
    offset: int
    elements: int
    at: int


@dataclass(frozen=True, slots=True)
class Slice:
    spec: KeySpec
    parts: tuple[Part, ...]

    @property
    def is_fused(self) -> bool:
        return len(self.parts) > 1


class Cut(msgspec.Struct, frozen=True):
    """How to cut; the same on all ranks, given by the coordinator."""

    first_key: Annotated[int, msgspec.Meta(ge=0, lt=MOST_KEYS)]
    slice_bytes: Annotated[int, msgspec.Meta(ge=ALIGNMENT)]


class Way(NamedTuple):
    """Of a tensor that travels in parts: in so many chunks, to everybody or to the shards."""

    chunks: int
    to_shards: bool = False


def choose_way(
    tensor: TensorSpec, piece_bytes: float, slice_bytes: int, *, least_bytes: int, shards: int, to_shards: bool
) -> Way:
    """For a tensor of which a worker sends so many bytes to each other, or to each shard."""
    # As many keys as were set aside for slices of the least size.
    most = count_most(tensor, least_bytes) // (shards if to_shards else 1)
    return Way(max(1, min(math.ceil(piece_bytes / slice_bytes), most)), to_shards)


def cut(
    tensors: Sequence[TensorSpec],
    how: Cut,
    *,
    op: Op,
    keep: bool = False,
    placement: Placement,
    ways: Mapping[int, Way] | None = None,
) -> list[Slice]:
    """The slices of these tensors, numbered from `how.first_key` on.

    `ways` are those of tensors that travel in parts; with `Op.GATHER` all do.
    """
    if op is Op.GATHER:
        ways = dict.fromkeys(range(len(tensors)), Way(1))
    slices = []
    drafts = _draft(tensors, how.slice_bytes, ways or {}, placement.shards)
    for key, draft in enumerate(drafts, start=how.first_key):
        if draft.is_gathered:
            spec = KeySpec(key, 0, DType.BYTES, Op.GATHER, draft.shard)
        else:
            elements = sum(part.elements for part in draft.parts)
            shard = draft.shard
            if shard == EVERYONE:
                shard = placement.place(elements * draft.dtype.numpy.itemsize)
            spec = KeySpec(key, elements, draft.dtype, op, shard, keep, is_published=draft.shard != EVERYONE)
        slices.append(Slice(spec, tuple(draft.parts)))
    return slices


def count_keys(tensors: Sequence[TensorSpec], slice_bytes: int, shards: int) -> int:
    """So many slices there are at the most, whichever way each tensor travels."""
    return sum(2 * count_most(tensor, slice_bytes) + 3 * shards * (len(tensor.shape) > 1) for tensor in tensors)


def count_slices(tensors: Sequence[TensorSpec], slice_bytes: int) -> int:
    """The same, if each of them is summed."""
    return sum(count_most(tensor, slice_bytes) for tensor in tensors)


def count_most(tensor: TensorSpec, slice_bytes: int) -> int:
    """So many slices, or chunks for everybody, one tensor may have."""
    return tensor.elements * tensor.dtype.numpy.itemsize // slice_bytes + 1


def split_rows(rows: int, shards: int) -> list[range]:
    """Which rows of a tensor each shard makes."""
    return [range(rows * shard // shards, rows * (shard + 1) // shards) for shard in range(shards)]


class _Draft(NamedTuple):
    """A slice before it has its key; of the shard that it is bound to, or any."""

    dtype: DType
    parts: Sequence[Part]
    shard: int = EVERYONE
    is_gathered: bool = False


def _draft(tensors: Sequence[TensorSpec], slice_bytes: int, ways: Mapping[int, Way], shards: int) -> Iterator[_Draft]:
    fuse_bytes = min(slice_bytes, MOST_FUSED_BYTES * FUSED_SHARE) // FUSED_SHARE
    fused: list[Part] = []
    for index, tensor in enumerate(tensors):
        itemsize = tensor.dtype.numpy.itemsize
        if index in ways:
            yield from _draft_parts(index, tensor, ways[index], slice_bytes // itemsize, shards)
            continue
        if tensor.elements * itemsize > fuse_bytes:
            for part in _pieces(index, range(tensor.elements), slice_bytes // itemsize):
                yield _Draft(tensor.dtype, [part])
            continue
        filled = fused[-1].at + fused[-1].elements if fused else 0
        fits = (filled + tensor.elements) * itemsize <= fuse_bytes and len(fused) < MAX_FUSED_TENSORS
        if fused and not (fits and tensors[fused[0].tensor].dtype is tensor.dtype):
            yield _Draft(tensors[fused[0].tensor].dtype, fused)
            fused, filled = [], 0
        if tensor.elements:
            fused.append(Part(index, 0, tensor.elements, filled))
    if fused:
        yield _Draft(tensors[fused[0].tensor].dtype, fused)


def _draft_parts(index: int, tensor: TensorSpec, way: Way, most: int, shards: int) -> Iterator[_Draft]:
    chunks = [Part(index, chunk, 0, 0) for chunk in range(way.chunks)]
    if not way.to_shards:
        for chunk in chunks:
            yield _Draft(DType.BYTES, [chunk], is_gathered=True)
        return
    rows = split_rows(tensor.shape[0], shards)
    columns = tensor.elements // tensor.shape[0]
    # A part that all shards get in chunks, and one of which each gets its own.
    for shard in (shard for shard in range(shards) if rows[shard]):
        for chunk in [*chunks, Part(index, way.chunks, 0, 0)]:
            yield _Draft(DType.BYTES, [chunk], shard, is_gathered=True)
    for shard, own in enumerate(rows):
        for part in _pieces(index, range(own.start * columns, own.stop * columns), most):
            yield _Draft(tensor.dtype, [part], shard)


def _pieces(index: int, elements: range, most: int) -> Iterator[Part]:
    for offset in range(elements.start, elements.stop, most):
        yield Part(index, offset, min(most, elements.stop - offset), 0)
