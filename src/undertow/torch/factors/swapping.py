"""Turns ordinary layers into layers that hand over factors, and back.

In: a module of the user's model.  Out: the same object, temporarily with another class whose forward computes the same.
A copy of it, or one loaded from a file, is an ordinary layer.
"""

from __future__ import annotations

from typing import Any

import torch

from undertow.torch.factors.collector import FactorCollector
from undertow.torch.modules.mixed_class import mix_class, own_class, reduce_to_own_class

_COLLECTOR = "_undertow_collector"


class Swapped:
    """Mixin of a layer that hands its factors to a collector."""

    _undertow_collector: FactorCollector

    def feeds(self, weight: torch.Tensor) -> bool:
        """Whether the collector is for this weight, which may have been replaced."""
        collector: FactorCollector | None = vars(self).get(_COLLECTOR)
        return collector is not None and weight is collector.parameter and weight.requires_grad

    def __reduce_ex__(self, protocol: Any) -> Any:
        make, arguments, state, *rest = reduce_to_own_class(super().__reduce_ex__(0), self)
        return make, arguments, {name: value for name, value in state.items() if name != _COLLECTOR}, *rest


def swap(module: torch.nn.Module, mixin: Any, collector: FactorCollector) -> None:
    """Let this layer hand its factors to the collector."""
    vars(module)[_COLLECTOR] = collector
    own: Any = type(module)
    module.__class__ = mix_class(mixin, own)


def can_swap(own: Any) -> bool:
    """Whether a layer's own class can have a mixin: not if it customises subclassing or copying."""
    names = {name for kind in own.__mro__[:-1] for name in vars(kind)}
    return names.isdisjoint({"__reduce__", "__reduce_ex__", "__init_subclass__"})


def find_own_class(module: torch.nn.Module) -> Any:
    """Return the class of a layer without the mixin."""
    return own_class(module) if isinstance(module, Swapped) else type(module)


def restore(module: torch.nn.Module) -> None:
    if isinstance(module, Swapped):
        module.__class__ = own_class(module)
        del vars(module)[_COLLECTOR]


def is_eager_call(input: Any) -> bool:
    """Whether only autograd records this call: no compiler, tracer, transform or tensor subclass."""
    return (
        torch.is_grad_enabled()
        and type(input) in (torch.Tensor, torch.nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
        and torch.autograd.forward_ad._current_level < 0
    )
