"""Stage 3, slicing: tensors become slices of about the same size.

In: tensors in the order in which their gradients are expected.  Out: slices, each with
its parts.  Large tensors are cut; tiny ones of one type are fused with the next tiny ones, large
ones in between or not, because a message costs the same whether it carries ten bytes or ten thousand.
A fused slice leaves with its last tensor, which the next forward pass needs first of all: the others,
needed later, lose nothing by it unless the wire would have been idle in between.
The parts cover every element of every tensor exactly once.

A tensor may also be *gathered*: everybody gets what each worker knows of it, which has no size that is
known before.  It has a number of slices without elements then, one for each chunk of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from undertow.core.dtypes import DType
from undertow.core.rounds import EVERYONE, KeySpec, Op
from undertow.plan.placement import Placement

# A fused slice has one bit per tensor in the frame's `present` field.
MAX_FUSED_TENSORS = 64
# Fused slices stay below a whole one: their last tensor holds up all the others.
FUSED_SHARE = 4
MOST_FUSED_BYTES = 256 << 10


class TensorSpec(msgspec.Struct, frozen=True):
    """A tensor as all ranks must have it."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    elements: int  # of `dtype`: the tensor's bytes where it travels as BYTES
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

    first_key: int
    slice_bytes: int


def cut(
    tensors: Sequence[TensorSpec],
    how: Cut,
    *,
    op: Op,
    keep: bool = False,
    placement: Placement,
    chunks: Mapping[int, int] | None = None,
) -> list[Slice]:
    """The slices of these tensors, numbered from `how.first_key` on.

    `chunks` are the tensors that are gathered, each with its number of chunks; with `Op.GATHER` all are, in one.
    """
    gathered = dict.fromkeys(range(len(tensors)), 1) if op is Op.GATHER else chunks or {}
    slices = []
    for key, (dtype, parts) in enumerate(_parts(tensors, how.slice_bytes, gathered), start=how.first_key):
        if parts[0].tensor in gathered:
            spec = KeySpec(key, 0, DType.BYTES, Op.GATHER, EVERYONE)
        else:
            elements = sum(part.elements for part in parts)
            spec = KeySpec(key, elements, dtype, op, placement.place(elements * dtype.numpy.itemsize), keep)
        slices.append(Slice(spec, tuple(parts)))
    return slices


def count_slices(tensors: Sequence[TensorSpec], slice_bytes: int) -> int:
    """So many at the most."""
    return sum(count_most(tensor, slice_bytes) for tensor in tensors)


def count_most(tensor: TensorSpec, slice_bytes: int) -> int:
    """So many slices, or chunks, one tensor may have."""
    return tensor.elements * tensor.dtype.numpy.itemsize // slice_bytes + 1


def _parts(
    tensors: Sequence[TensorSpec], slice_bytes: int, gathered: Mapping[int, int]
) -> Iterator[tuple[DType, list[Part]]]:
    fuse_bytes = min(slice_bytes, MOST_FUSED_BYTES * FUSED_SHARE) // FUSED_SHARE
    fused: list[Part] = []
    for index, tensor in enumerate(tensors):
        itemsize = tensor.dtype.numpy.itemsize
        if index in gathered:
            yield from ((DType.BYTES, [Part(index, chunk, 0, 0)]) for chunk in range(gathered[index]))
            continue
        if tensor.elements * itemsize > fuse_bytes:
            yield from _pieces(index, tensor, slice_bytes // itemsize)
            continue
        filled = fused[-1].at + fused[-1].elements if fused else 0
        fits = (filled + tensor.elements) * itemsize <= fuse_bytes and len(fused) < MAX_FUSED_TENSORS
        if fused and not (fits and tensors[fused[0].tensor].dtype is tensor.dtype):
            yield tensors[fused[0].tensor].dtype, fused
            fused, filled = [], 0
        if tensor.elements:
            fused.append(Part(index, 0, tensor.elements, filled))
    if fused:
        yield tensors[fused[0].tensor].dtype, fused


def _pieces(index: int, tensor: TensorSpec, most: int) -> Iterator[tuple[DType, list[Part]]]:
    for offset in range(0, tensor.elements, most):
        yield tensor.dtype, [Part(index, offset, min(most, tensor.elements - offset), 0)]
