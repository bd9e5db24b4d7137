"""Between a script's tensors and the arrays of a call.

In: tensors of any type, layout and device.  Out: flat arrays of host memory, the tensor's own where that
is possible, and what all ranks must agree on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from undertow.core.dtypes import DType
from undertow.core.rounds import Array
from undertow.horovod.errors import BadCall
from undertow.plan.slicing import TensorSpec
from undertow.torch.tensors import as_array, as_complex, is_plain, real

_CODES = {
    torch.float64: DType.FLOAT64,
    torch.float32: DType.FLOAT32,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.complex64: DType.FLOAT32,
    torch.complex128: DType.FLOAT64,
    torch.int64: DType.INT64,
    torch.int32: DType.INT32,
}


def code_of(dtype: torch.dtype) -> DType:
    """The type in which the shards sum it; BYTES if they cannot."""
    return _CODES.get(dtype, DType.BYTES)


def check_tensors(tensors: Sequence[Any], kind: str) -> None:
    if not tensors:
        raise BadCall(f"{kind} of no tensors")
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise BadCall(f"{kind} takes tensors, not {type(tensor).__name__}")
        if tensor.layout is not torch.strided:
            raise BadCall(f"{kind} takes dense tensors; use sparse_allreduce_async for a sparse one")


def check_rows(tensors: Sequence[torch.Tensor], kind: str) -> None:
    """For calls that cut tensors along their first dimension."""
    check_tensors(tensors, kind)
    if any(tensor.dim() == 0 for tensor in tensors):
        raise BadCall(f"{kind} of a tensor without a dimension: make it one of a single row with .reshape(1)")


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The values in contiguous host memory, complex ones as pairs: the tensor's own memory if possible."""
    tensor = tensor.detach()
    if not is_plain(tensor):
        tensor = tensor.to("cpu").resolve_conj().resolve_neg().contiguous()
    return real(tensor)


def raw(host: torch.Tensor) -> Array:
    return as_array(host, DType.BYTES)


def numbers(host: torch.Tensor) -> Array:
    """The same memory as an array of its own type."""
    code = code_of(host.dtype)
    if code is not DType.BYTES:
        return as_array(host, code)
    array: Array = host.reshape(-1).numpy()
    return array


def dtype_of(host: torch.Tensor) -> np.dtype[Any]:
    dtype: np.dtype[Any] = numbers(host.reshape(-1)[:0]).dtype
    return dtype


def summed_spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    """How a tensor travels that is summed by the shards."""
    elements = tensor.numel() * (2 if tensor.is_complex() else 1)
    return TensorSpec(name, tuple(tensor.shape), code_of(tensor.dtype), elements, str(tensor.dtype))


def row_spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    """A tensor whose number of rows is each rank's own business."""
    return TensorSpec(name, (-1, *tensor.shape[1:]), DType.BYTES, 0, str(tensor.dtype))


def name_specs(name: str | None, count: int) -> list[str]:
    """What the tensors of one call are called in messages."""
    title = name or "tensor"
    return [title] if count == 1 else [f"{title}[{index}]" for index in range(count)]


def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiplied, and rounded once: 16-bit floats in 32 bits, whole numbers in 64."""
    if factor == 1.0:
        return tensor
    if not tensor.is_floating_point() and not tensor.is_complex():
        return (tensor.double() * factor).to(tensor.dtype)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return (tensor.float() * factor).to(tensor.dtype)
    return tensor * factor


@torch.no_grad()
def put(host: torch.Tensor, output: torch.Tensor) -> None:
    """Results in host memory become the output, unless they are in its memory already."""
    result = as_complex(host) if output.is_complex() else host
    if result.data_ptr() != output.data_ptr() or not output.numel():
        output.detach().copy_(result.reshape(output.shape))
