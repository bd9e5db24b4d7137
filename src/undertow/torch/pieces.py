"""What one worker knows of a gradient, as bytes: its parts, and whatever the gradient holds besides.

In: tensors.  Out: one blob, and out of a blob the tensors again.
The parts have one row for each row of the layer's input, or for each row of an embedding that was
touched.  A whole gradient may follow them: what came some other way than through the layer (a weight
that is used twice, a gradient that was there before the pass) is lost as little as anything else.
The blob's number says how to read it:

    bit 0       the worker has a gradient
    bit 1       a whole gradient follows the parts
    bits 8-15   the type of the parts' values, see DType
    bits 16-63  how many rows each part has
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from undertow.core.dtypes import DType
from undertow.core.rounds import Array
from undertow.errors import UndertowError
from undertow.torch.carriers import all_done
from undertow.torch.device import Copier, host_memory
from undertow.torch.tensors import dtype_code, torch_dtype

ALIGNMENT = 16  # bytes: each tensor of a blob begins at a multiple
_PRESENT, _WHOLE = 1, 2


class Known(NamedTuple):
    """Of a gradient, by one worker.  All parts have as many rows."""

    parts: tuple[torch.Tensor, ...] = ()
    whole: torch.Tensor | None = None
    is_present: bool = True


NOTHING = Known(is_present=False)


class Column(NamedTuple):
    """What a part looks like: so many elements per row, of this type or of that of the blob's values."""

    width: int
    dtype: torch.dtype | None = None


class Blob(NamedTuple):
    array: Array | None
    number: int
    is_ready: Callable[[], bool] | None = None  # for copies from a device


def pack(known: Known, copier: Copier, device: torch.device) -> Blob:
    """A copy: whoever made these tensors may write to them while they travel."""
    if not known.is_present:
        return Blob(None, 0)
    number = _PRESENT
    if known.parts:
        number |= dtype_code(known.parts[-1].dtype) << 8 | len(known.parts[0]) << 16
    tensors = list(known.parts)
    if known.whole is not None:
        number |= _WHOLE
        tensors.append(known.whole)
    ends = _ends([tensor.numel() * tensor.element_size() for tensor in tensors])
    if not ends or not ends[-1]:
        return Blob(None, number)
    memory = host_memory(ends[-1], torch.uint8, device)
    copies = []
    for tensor, start in zip(tensors, [0, *ends], strict=False):
        size_bytes = tensor.numel() * tensor.element_size()
        target = memory[start : start + size_bytes].view(tensor.dtype).view(tensor.shape)
        copies.append(copier.out(tensor, target))
    return Blob(memory.numpy(), number, all_done([is_done for is_done in copies if is_done is not None]))


def unpack(
    chunks: Sequence[Array | None], number: int, columns: Sequence[Column], shape: torch.Size, dtype: torch.dtype
) -> Known:
    """What another worker packed; the tensors share the chunk's memory if it is one."""
    if not number & _PRESENT:
        return NOTHING
    rows, values = number >> 16, torch_dtype(DType(number >> 8 & 0xFF)) if number >> 8 else dtype
    forms: list[tuple[tuple[int, ...], torch.dtype]] = []
    if number >> 8:
        forms += [((rows, column.width), column.dtype or values) for column in columns]
    if number & _WHOLE:
        forms.append((tuple(shape), dtype))
    sizes = [math.prod(size) * kind.itemsize for size, kind in forms]
    ends = _ends(sizes)
    memory = _join(chunks)
    if memory.size != (ends[-1] if ends else 0):
        raise UndertowError(
            f"a gradient came in {memory.size} bytes, but its number {number:x} says {ends[-1] if ends else 0}"
        )
    tensors = [
        (
            torch.from_numpy(memory[start : start + size_bytes]).view(kind)
            if size_bytes
            else torch.empty(0, dtype=kind)
        ).view(size)
        for start, size_bytes, (size, kind) in zip([0, *ends], sizes, forms, strict=False)
    ]
    whole = tensors.pop() if number & _WHOLE else None
    return Known(tuple(tensors), whole)


def split(array: Array | None, count: int) -> list[Array | None]:
    """Chunks of about the same size."""
    if array is None:
        return [None] * count
    bounds = [array.size * index // count for index in range(count + 1)]
    return [array[start:end] if end > start else None for start, end in itertools.pairwise(bounds)]


def _join(chunks: Sequence[Array | None]) -> Array:
    held = [chunk for chunk in chunks if chunk is not None]
    if len(held) == 1:
        return held[0]
    return np.concatenate(held) if held else np.empty(0, np.uint8)


def _ends(sizes: Sequence[int]) -> list[int]:
    """Where the room of each one ends."""
    ends, end = [], 0
    for size in sizes:
        end += -(-size // ALIGNMENT) * ALIGNMENT
        ends.append(end)
    return ends
