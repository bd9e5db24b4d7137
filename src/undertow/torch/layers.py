"""The layers of a model whose gradients have another lossless way than as a whole.

In: a module.  Out: one `Layer` per weight that can travel in parts, and in words why others cannot.
A module may say itself how: with a `take_factors` or `take_rows` that it calls with its parts, which
tells whether they were taken, and a `rebuild` that makes the gradient out of joined ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from undertow.plan.profile import Kind
from undertow.torch.factor_devices import find_device_obstacle
from undertow.torch.factors import FactoredLinear, Factors
from undertow.torch.overlap import find_readers
from undertow.torch.rows import RowEmbedding, RowEmbeddingBag, Rows
from undertow.torch.sources import Ask, Form, Parts, Source
from undertow.torch.swapping import can_swap, plain_class, restore, swap
from undertow.torch.tensors import gradient_dtype

_CONVOLUTIONS = (nn.modules.conv._ConvNd,)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


class Layer:
    """A linear layer or an embedding, and the weight in it."""

    def __init__(self, module: Any, kind: Kind, form: Form, mixin: Any = None) -> None:
        self.module = module
        self.weight: nn.Parameter = module.weight
        self.kind = kind
        self.form = form
        self.product_s: float | None = getattr(module, "product_s", None)
        self._mixin = mixin  # None: it hands over its parts by itself, or its gradient is in parts already

    def attach(self, source: Source) -> None:
        """From the next forward on, let it hand over its parts where they are asked for."""
        self.detach()
        if self._mixin is not None:
            swap(self.module, self._mixin, source)
        elif hasattr(self.module, "take_factors"):
            self.module.take_factors = lambda *parts: not find_device_obstacle(self.weight) and _offer(source, parts)
        elif hasattr(self.module, "take_rows"):
            self.module.take_rows = lambda numbers, values: _offer(source, (numbers.view(-1, 1), values))

    def detach(self) -> None:
        restore(self.module)
        for name in ("take_factors", "take_rows"):
            if hasattr(self.module, name):
                setattr(self.module, name, None)


def _offer(source: Source, parts: Parts) -> bool:
    if source.ask() is not Ask.PARTS:
        return False
    source.give(parts)
    return True


def find_layers(module: nn.Module) -> tuple[list[Layer], dict[torch.Tensor, str]]:
    """Layers with another way, and why not, of weights that look as if they had one."""
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
            obstacles[weight] = f"its type {weight.dtype} travels as a whole only"
        elif layer.kind is Kind.LINEAR and (obstacle := find_device_obstacle(weight)):
            obstacles[weight] = obstacle
        else:
            layers.append(layer)
    return layers, obstacles


def make_layer(module: Any) -> Layer | None:
    """This module as a layer with another way; None if it has none."""
    kind = plain_class(module)
    if hasattr(module, "take_factors"):
        return Layer(module, Kind.LINEAR, Factors(module.weight, module.rebuild))
    if hasattr(module, "take_rows"):
        return Layer(module, Kind.EMBEDDING, Rows(module.weight, is_sparse=False, rebuild=module.rebuild))
    if not can_swap(kind):
        return None
    if kind.forward is nn.Linear.forward:
        return Layer(module, Kind.LINEAR, Factors(module.weight), FactoredLinear)
    if kind.forward in (nn.Embedding.forward, nn.EmbeddingBag.forward):
        if module.scale_grad_by_freq or module.max_norm is not None or getattr(module, "mode", "sum") == "max":
            return None
        mixin = RowEmbedding if kind.forward is nn.Embedding.forward else RowEmbeddingBag
        # A sparse gradient is made of rows as it comes.
        return Layer(
            module,
            Kind.EMBEDDING,
            Rows(module.weight, is_sparse=module.sparse),
            None if module.sparse else mixin,
        )
    return None


def find_kind(module: nn.Module) -> Kind:
    """What a module is to the planner, where it has no other way."""
    if isinstance(module, _CONVOLUTIONS):
        return Kind.CONV
    if isinstance(module, _RECURRENT):
        return Kind.LSTM
    return Kind.OTHER


def _find_holders(module: nn.Module) -> dict[torch.Tensor, list[str]]:
    """The names of all modules that hold each parameter."""
    holders: dict[torch.Tensor, list[str]] = {}
    for name, holder in module.named_modules():
        own: Iterable[torch.Tensor | None] = holder._parameters.values()
        for parameter in own:
            if parameter is not None:
                holders.setdefault(parameter, []).append(repr(name))
    return holders
