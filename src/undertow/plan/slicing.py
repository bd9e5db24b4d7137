"""Stage 3, slicing: tensors become slices of about the same size.

In: tensors in the order in which their gradients are expected.  Out: slices, each with
its parts.  Large tensors are cut; tiny ones of one type are fused with the next tiny ones, large
ones in between or not, because a message costs the same whether it carries ten bytes or ten thousand.
A fused slice leaves with its last tensor, which the next forward pass needs first of all: the others,
needed later, lose nothing by it unless the wire would have been idle in between.
The parts cover every element of every tensor exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from undertow.core.dtypes import DType
from undertow.core.rounds import KeySpec, Op
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


def cut(tensors: Sequence[TensorSpec], how: Cut, *, op: Op, keep: bool, placement: Placement) -> list[Slice]:
    """The slices of these tensors, numbered from `how.first_key` on."""
    slices = []
    for key, (dtype, parts) in enumerate(_parts(tensors, how.slice_bytes), start=how.first_key):
        elements = sum(part.elements for part in parts)
        shard = placement.place(elements * dtype.numpy.itemsize)
        slices.append(Slice(KeySpec(key, elements, dtype, op, shard, keep), tuple(parts)))
    return slices


def count_slices(tensors: Sequence[TensorSpec], slice_bytes: int) -> int:
    """So many at the most."""
    return sum(tensor.elements * tensor.dtype.numpy.itemsize // slice_bytes + 1 for tensor in tensors)


def _parts(tensors: Sequence[TensorSpec], slice_bytes: int) -> Iterator[tuple[DType, list[Part]]]:
    fuse_bytes = min(slice_bytes, MOST_FUSED_BYTES * FUSED_SHARE) // FUSED_SHARE
    fused: list[Part] = []
    for index, tensor in enumerate(tensors):
        itemsize = tensor.dtype.numpy.itemsize
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
