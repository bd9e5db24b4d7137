"""Tensors that stand in the place of parameters for one call: `torch.func.functional_call` and its relatives.

In: what a forward finds where a parameter was wrapped.  Out: whether it is there for this call only, and whether a
gradient of it can reach the parameter.

A tensor that is computed from the parameter (a fast weight of MAML) leads back to it: autograd adds to the parameter's
gradient, and that is averaged as ever.  So does the parameter itself where `torch.func.grad` differentiates by it: what
that returns may be part of a loss.  A leaf (a detached copy), or a tensor without autograd that `torch.func.grad`
differentiates by, keeps its gradient for itself.  Torch's own DistributedDataParallel does not average that either.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator

import torch
from torch.nn.utils import stateless


def find_stand_ins() -> set[int]:
    """The ids of all tensors that functional calls around this frame have put into modules."""
    return {id(tensor) for call in _find_calls() for tensor in call.values()}


def _find_calls() -> Iterator[dict[str, torch.Tensor]]:
    """What each of these calls was given.  Looked up on the stack: only a forward that finds something asks."""
    code = stateless._functional_call.__code__
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is code:
            yield frame.f_locals["parameters_and_buffers"]
        frame = frame.f_back  # type: ignore[assignment]


def is_stand_in(found: torch.Tensor | None, stand_ins: set[int]) -> bool:
    """Whether this is in a parameter's place for the time of a call.

    Torch lets a module have nothing but parameters there, so a plain tensor is.
    """
    return found is not None and (id(found) in stand_ins or not isinstance(found, torch.nn.Parameter))


def keeps_gradient(tensor: torch.Tensor, parameters: Container[int]) -> bool:
    """Whether a gradient of this tensor stays with it, and reaches none of these parameters, given by their ids."""
    transforms = torch._C._functorch
    is_differentiated = False
    # Beneath is what a transform was given: in an outer backward the gradient goes on to what that was made from.
    while transforms.is_functorch_wrapped_tensor(tensor):
        is_differentiated |= transforms.is_gradtrackingtensor(tensor)
        tensor = transforms.get_unwrapped(tensor)
    if not tensor.requires_grad:
        return is_differentiated
    return tensor.is_leaf and id(tensor) not in parameters
