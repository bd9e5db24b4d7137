"""A cheap digest of the inputs of a forward pass.

In: a module's arguments.  Out: a number that is equal for equal tensors; None if reading them is expensive or
impossible, because the digest only serves a warning, for which a forward pass must not fail.
At most a few kB are read.  Reading a tensor on an accelerator waits for it, so callers say when that is acceptable.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch

from undertow.torch.modules.forwards import find_tensors

SAMPLES = 1024  # of one tensor
TENSORS = 8
HOST = "cpu"


def digest_inputs(*inputs: Any, waits: bool = False) -> int | None:
    """Return a digest of the first tensors among these arguments; `waits` includes those on accelerators."""
    digest = None
    try:
        for tensor in [tensor for tensor in find_tensors(inputs) if _is_readable(tensor, waits=waits)][:TENSORS]:
            sample = _sample(tensor.detach()).resolve_conj().resolve_neg().contiguous().view(torch.uint8).cpu()
            digest = zlib.crc32(sample.numpy().data, zlib.crc32(repr(tuple(tensor.shape)).encode(), digest or 0))
    except RuntimeError:  # raised by tensors without data
        return None
    return digest


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return equally spaced elements in the order of their indices, whatever their layout in memory."""
    step = max(1, tensor.numel() // SAMPLES)
    if tensor.is_contiguous():
        return tensor.view(-1)[::step]
    places = torch.arange(0, tensor.numel(), step, device=tensor.device)
    return tensor[torch.unravel_index(places, tensor.shape)]


def _is_readable(tensor: torch.Tensor, *, waits: bool) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    if tensor.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    if tensor.is_meta or tensor.is_quantized or not tensor.numel():
        return False
    return tensor.device.type == HOST or (waits and not _is_capturing(tensor.device))


def _is_capturing(device: torch.device) -> bool:
    """Whether the device is capturing a graph, during which nothing can be read."""
    return bool(getattr(torch.get_device_module(device), "is_current_stream_capturing", bool)())
