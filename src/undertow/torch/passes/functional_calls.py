"""Tensors that replace parameters for one call: `torch.func.functional_call` and related functions.

In: the tensor that a forward finds in place of a wrapped parameter.  Out: whether it is there for this call only, and
whether its gradient can reach the parameter.

The gradient of a tensor that is computed from the parameter (a fast weight of MAML) reaches the parameter: autograd
adds it to the parameter's gradient, which is averaged as usual.  The same holds if `torch.func.grad` differentiates
with respect to the parameter itself, because the result may be part of a loss.  A leaf (a detached copy) keeps its
gradient, and so does a tensor without autograd with respect to which `torch.func.grad` differentiates.  Torch's own
DistributedDataParallel does not average these either.
"""

from __future__ import annotations

import sys
from collections.abc import Container
from types import FrameType

import torch
from torch.nn.utils import stateless


def find_stand_ins() -> set[int]:
    """Return the ids of all tensors that enclosing functional calls have put into modules.

    The calls are found by searching the stack, which few forwards need.
    """
    code = stateless._functional_call.__code__
    stand_ins: set[int] = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is code:
            stand_ins.update(map(id, frame.f_locals["parameters_and_buffers"].values()))
        frame = frame.f_back
    return stand_ins


def is_stand_in(found: torch.Tensor | None, stand_ins: set[int]) -> bool:
    """Whether this tensor replaces a parameter for one call.

    Otherwise torch allows only parameters there, so any other tensor does.
    """
    return found is not None and (id(found) in stand_ins or not isinstance(found, torch.nn.Parameter))


def keeps_gradient(tensor: torch.Tensor, parameters: Container[int]) -> bool:
    """Whether a gradient of this tensor reaches none of these parameters, given by their ids."""
    transforms = torch._C._functorch
    is_differentiated = False
    # A wrapper contains the tensor that the transform was given, to whose origin an outer backward passes the gradient.
    while transforms.is_functorch_wrapped_tensor(tensor):
        is_differentiated |= transforms.is_gradtrackingtensor(tensor)
        tensor = transforms.get_unwrapped(tensor)
    if not tensor.requires_grad:
        return is_differentiated
    return tensor.is_leaf and id(tensor) not in parameters
