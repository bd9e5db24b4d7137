"""The layers of a model whose gradients can be sent as factors or rows.

In: a module.  Out: one `Layer` per such weight, and the reasons why other weights have none.
A module may support this itself: with an attribute `take_factors` or `take_rows`, which it calls with its factors and
which returns whether they were taken, and a `rebuild` that computes the gradient from joined factors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from undertow.plan.profile import LayerKind
from undertow.torch.factors.collector import FactorCollector, Factors, Form, Wanted
from undertow.torch.factors.devices import find_device_obstacle
from undertow.torch.factors.embeddings import EmbeddingForm, RowEmbedding, RowEmbeddingBag
from undertow.torch.factors.linear import FactoredLinear, LinearForm
from undertow.torch.factors.swapping import can_swap, find_own_class, restore, swap
from undertow.torch.modules.forwards import find_readers
from undertow.torch.slots.tensors import gradient_dtype


class Layer:
    """A linear layer or an embedding, and the weight in it."""

    def __init__(self, module: Any, form: Form, mixin: Any = None) -> None:
        self.module = module
        self.weight: nn.Parameter = module.weight
        self.form = form
        self.kind = form.kind
        self.product_s: float | None = getattr(module, "product_s", None)
        self._mixin = mixin  # None: the module hands over its factors itself, or its gradient is sparse already

    @property
    def obstacle(self) -> str:
        """Why its factors cannot be sent from its current device; empty if they can."""
        return find_device_obstacle(self.weight) if self.kind is LayerKind.LINEAR else ""

    def attach(self, collector: FactorCollector) -> None:
        """Make the layer hand over its factors where they are wanted, beginning with the next forward pass."""
        self.detach()
        if self._mixin is not None:
            swap(self.module, self._mixin, collector)
        elif hasattr(self.module, "take_factors"):
            self.module.take_factors = lambda *factors: not self.obstacle and _offer(collector, factors)
        elif hasattr(self.module, "take_rows"):
            self.module.take_rows = lambda numbers, values: _offer(collector, (numbers.view(-1, 1), values))

    def detach(self) -> None:
        """Make the layer compute its gradient, beginning with the next forward pass."""
        restore(self.module)
        for name in ("take_factors", "take_rows"):
            if hasattr(self.module, name):
                setattr(self.module, name, None)


def _offer(collector: FactorCollector, factors: Factors) -> bool:
    if collector.find_wanted() is not Wanted.FACTORS:
        return False
    collector.add(factors)
    return True


def find_layers(module: nn.Module, *, on_any_device: bool = False) -> tuple[list[Layer], dict[torch.Tensor, str]]:
    """Return the layers that can hand over factors, and the reasons why similar ones cannot, by weight."""
    layers: list[Layer] = []
    obstacles: dict[torch.Tensor, str] = {}
    holders = _find_holders(module)
    for reader, parameters in find_readers(module):
        weight: Any = getattr(reader, "weight", None)
        if not any(weight is parameter for parameter in parameters) or weight.dim() != 2 or not weight.numel():
            continue
        layer = make_layer(reader)
        if layer is None:
            continue
        names = holders[weight]
        if len(names) > 1:
            obstacles[weight] = f"it is shared by {' and '.join(names)}"
        elif weight.is_complex() or gradient_dtype(weight) is not weight.dtype:
            obstacles[weight] = f"gradients of type {weight.dtype} are only sent whole"
        elif layer.obstacle and not on_any_device:
            obstacles[weight] = layer.obstacle
        else:
            layers.append(layer)
    return layers, obstacles


def make_layer(module: Any) -> Layer | None:
    """Return this module as a layer that can hand over factors or rows; None if it cannot."""
    kind = find_own_class(module)
    if hasattr(module, "take_factors"):
        return Layer(module, LinearForm(module.weight, module.rebuild))
    if hasattr(module, "take_rows"):
        return Layer(module, EmbeddingForm(module.weight, is_sparse=False, rebuild=module.rebuild))
    if not can_swap(kind):
        return None
    if kind.forward is nn.Linear.forward:
        return Layer(module, LinearForm(module.weight), FactoredLinear)
    if kind.forward in (nn.Embedding.forward, nn.EmbeddingBag.forward):
        if module.scale_grad_by_freq or module.max_norm is not None or getattr(module, "mode", "sum") == "max":
            return None
        mixin = RowEmbedding if kind.forward is nn.Embedding.forward else RowEmbeddingBag
        # A sparse gradient consists of rows already.
        return Layer(module, EmbeddingForm(module.weight, is_sparse=module.sparse), None if module.sparse else mixin)
    return None


def find_kind(module: nn.Module) -> LayerKind:
    """Return the planner's kind of a module without factors."""
    if isinstance(module, nn.modules.conv._ConvNd):
        return LayerKind.CONV
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return LayerKind.LSTM
    return LayerKind.OTHER


def _find_holders(module: nn.Module) -> dict[torch.Tensor, list[str]]:
    """Return the names of all modules that hold each parameter."""
    holders: dict[torch.Tensor, list[str]] = {}
    for name, holder in module.named_modules():
        own: Iterable[torch.Tensor | None] = holder._parameters.values()
        for parameter in own:
            if parameter is not None:
                holders.setdefault(parameter, []).append(repr(name))
    return holders
