"""Converts between torch's tensors and the arrays that are sent, without a copy where possible.

In: tensors.  Out: flat numpy views of the same memory, and the specs on which all ranks must agree.
"""

from __future__ import annotations

import numpy as np
import torch

from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Array
from undertow.engine.core.slicing import TensorSpec
from undertow.errors import ConfigError

DTYPES = {
    torch.float64: DType.FLOAT64,
    torch.float32: DType.FLOAT32,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.complex64: DType.FLOAT32,
    torch.complex128: DType.FLOAT64,
}


def gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Return the type of a parameter's gradient, which in newer versions of torch may differ from the parameter's."""
    chosen: torch.dtype | None = getattr(parameter, "grad_dtype", None)
    return chosen or parameter.dtype


def gradient_spec(name: str, parameter: torch.Tensor, travels_as: torch.dtype | None = None) -> TensorSpec:
    """Describe a parameter's gradient as it is sent, in type `travels_as` if it is given.

    Complex numbers are sent as pairs of real ones.
    """
    dtype = travels_as or gradient_dtype(parameter)
    if dtype not in DTYPES:
        raise ConfigError(
            f"parameter {name!r} is of type {dtype}, whose gradients cannot be summed exactly; "
            f"use one of {', '.join(str(dtype) for dtype in DTYPES)}, or freeze it (requires_grad_(False))"
        )
    elements = parameter.numel() * (2 if parameter.is_complex() else 1)
    return TensorSpec(name, tuple(parameter.shape), DTYPES[dtype], elements, str(dtype))


def byte_spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    """Describe a tensor that is only copied, as the bytes that are sent."""
    size_bytes = tensor.numel() * tensor.element_size()
    return TensorSpec(name, tuple(tensor.shape), DType.BYTES, size_bytes, str(tensor.dtype))


def as_array(tensor: torch.Tensor, dtype: DType) -> Array:
    """Return the memory of a contiguous host tensor as a flat array of the type that is sent."""
    # By way of bytes, because numpy has no type for torch's bfloat16.
    array: Array = tensor.detach().reshape(-1).view(torch.uint8).numpy().view(dtype.numpy)
    return array


def as_tensor(array: Array) -> torch.Tensor:
    """Return an array as a tensor that shares its memory."""
    if array.dtype == DType.BFLOAT16.numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as pairs of real numbers that share its memory; return any other tensor unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_complex(pairs: torch.Tensor) -> torch.Tensor:
    """Return pairs of real numbers as complex ones, which share their memory where torch allows it."""
    # After an odd number of real numbers in a fused slice, a complex number would not be aligned to its size.
    return torch.view_as_complex(pairs.clone() if pairs.storage_offset() % 2 else pairs)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether this memory can be sent and received in place."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
