"""Converts between a script's tensors and the arrays of a call.

In: tensors of any type, layout and device.  Out: flat arrays in host memory, in the tensor's own memory if possible,
and the specs that all ranks must agree on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Array
from undertow.engine.core.slicing import TensorSpec
from undertow.horovod.errors import BadCall
from undertow.torch.slots.tensors import DTYPES, as_array, as_complex, is_plain, real

_CODES = {**DTYPES, torch.int64: DType.INT64, torch.int32: DType.INT32}


def code_of(dtype: torch.dtype) -> DType:
    """Return the type in which shards sum numbers of this type; BYTES if they cannot."""
    return _CODES.get(dtype, DType.BYTES)


def check_tensors(tensors: Sequence[Any], kind: str) -> None:
    if not tensors:
        raise BadCall(f"{kind} of an empty list: give at least one tensor")
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise BadCall(f"{kind} takes tensors, not {type(tensor).__name__}")
        if tensor.layout is not torch.strided:
            raise BadCall(f"{kind} takes dense tensors; use sparse_allreduce_async for a sparse one")


def check_rows(tensors: Sequence[torch.Tensor], kind: str) -> None:
    """Check the tensors of a call that cuts them along their first dimension."""
    check_tensors(tensors, kind)
    if any(tensor.dim() == 0 for tensor in tensors):
        raise BadCall(f"{kind} of a tensor without dimensions: give it one with .reshape(1)")


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values in contiguous host memory, the tensor's own if possible; complex numbers become pairs."""
    tensor = tensor.detach()
    if not is_plain(tensor):
        tensor = tensor.to("cpu").resolve_conj().resolve_neg().contiguous()
    return real(tensor)


def raw(host: torch.Tensor) -> Array:
    return as_array(host, DType.BYTES)


def numbers(host: torch.Tensor) -> Array:
    """View host memory as a flat array of its own type."""
    code = code_of(host.dtype)
    if code is not DType.BYTES:
        return as_array(host, code)
    array: Array = host.reshape(-1).numpy()
    return array


def summed_spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Return the spec of a tensor that shards sum."""
    elements = tensor.numel() * (2 if tensor.is_complex() else 1)
    return TensorSpec(name, tuple(tensor.shape), code_of(tensor.dtype), elements, str(tensor.dtype))


def row_spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Return the spec of a tensor whose number of rows may differ between ranks."""
    return TensorSpec(name, (-1, *tensor.shape[1:]), DType.BYTES, 0, str(tensor.dtype))


def name_specs(name: str | None, count: int) -> list[str]:
    """Return names for the tensors of one call, for messages."""
    title = name or "tensor"
    return [title] if count == 1 else [f"{title}[{index}]" for index in range(count)]


def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply with one rounding: 16-bit floats in 32 bits, whole numbers as 64-bit floats."""
    if factor == 1.0:
        return tensor
    if not tensor.is_floating_point() and not tensor.is_complex():
        return (tensor.double() * factor).to(tensor.dtype)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return (tensor.float() * factor).to(tensor.dtype)
    return tensor * factor


def put_rows(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Copy rows from host memory to a new tensor with the type and device of `like`."""
    output = like.new_empty((len(rows), *like.shape[1:]))
    put(rows, output)
    return output


@torch.no_grad()
def put(host: torch.Tensor, output: torch.Tensor) -> None:
    """Copy a result in host memory to the output, unless it is already in the output's memory."""
    result = as_complex(host) if output.is_complex() else host
    if result.data_ptr() != output.data_ptr() or not output.numel():
        output.detach().copy_(result.reshape(output.shape))
