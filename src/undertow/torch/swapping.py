"""Layers that hand over parts of their gradients: how they are made out of ordinary ones, and back.

In: a module of the user's model.  Out: the same object with another class for a while, whose forward
computes the same.  A copy, or what comes out of a file, is an ordinary layer.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from undertow.torch.sources import Source

_SOURCE = "_undertow_source"


class Swapped:
    """Mixed into a layer's own class."""

    @property
    def source(self) -> Source:
        source: Source = vars(self)[_SOURCE]
        return source

    def feeds(self, weight: torch.Tensor) -> bool:
        """Whether the gradient of this weight is what the source is for: another one may have been put in its place."""
        source: Source | None = vars(self).get(_SOURCE)
        return source is not None and weight is source.parameter and weight.requires_grad

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The oldest protocol names the class as an argument; later ones insist on the object's own.
        reduced: Any = super().__reduce_ex__(0)
        make, (_, *arguments), state, *rest = reduced
        state = {name: value for name, value in state.items() if name != _SOURCE}
        return make, (type(self).__bases__[1], *arguments), state, *rest


def swap(module: torch.nn.Module, kind: Any, source: Source) -> None:
    """Let this layer hand its parts to the source."""
    vars(module)[_SOURCE] = source
    plain: Any = type(module)
    module.__class__ = _mix(kind, plain)


def can_swap(plain: Any) -> bool:
    """Whether a layer's class may be mixed into another one: not if it minds, or makes copies in a way of its own."""
    own = {name for kind in plain.__mro__[:-1] for name in vars(kind)}
    return own.isdisjoint({"__reduce__", "__reduce_ex__", "__init_subclass__"})


def plain_class(module: torch.nn.Module) -> Any:
    """What it is without us."""
    return type(module).__bases__[1] if isinstance(module, Swapped) else type(module)


def restore(module: torch.nn.Module) -> None:
    """Let it be what it was."""
    if isinstance(module, Swapped):
        module.__class__ = type(module).__bases__[1]
        del vars(module)[_SOURCE]


def is_plain_call(input: Any) -> bool:
    """Whether autograd alone looks on: no compiler, tracer, transform or kind of tensor with ways of its own."""
    return (
        torch.is_grad_enabled()
        and type(input) in (torch.Tensor, torch.nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
        and torch.autograd.forward_ad._current_level < 0
    )


@functools.cache
def _mix(kind: Any, plain: Any) -> Any:
    body = {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
    return types.new_class(plain.__name__, (kind, plain), exec_body=lambda space: space.update(body))
