"""A replayed model: the zoo's layers in the order of the forward pass, on one device.

In: a model of the zoo, a scale, a slowdown of all times.  Out: an `nn.Module` that a wrapper cannot tell from a
real one, and that takes the published time for a forward and a backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from undertow.lab.replay.device import Device
from undertow.lab.replay.layers import Cost, ReplayedEmbedding, ReplayedLayer, ReplayedLinear
from undertow.lab.replay.scaling import scale_rows, scale_shape
from undertow.zoo import Kind, Layer, Model


class ReplayedModel(nn.Module):
    """Called with one batch of `make_batch`; gives a tensor whose sum is the loss."""

    def __init__(
        self,
        model: Model,
        *,
        device: Device,
        scale: float = 1.0,
        slowdown: float = 1.0,
        batch: int | None = None,
    ) -> None:
        super().__init__()
        self.batch = batch or model.batch
        stretch = slowdown * self.batch / model.batch
        self.device = device
        self.layers = nn.ModuleDict()
        self.tokens: list[tuple[int, int]] = []  # of each embedding: its rows, how many tokens a step looks up
        for layer, share in zip(model.layers, model.shares, strict=True):
            cost = Cost(
                forward_s=model.forward_s * share * stretch,
                input_s=model.backward_s * share * stretch / 2,
                weight_s=model.backward_s * share * stretch / 2,
            )
            self._add(layer, cost, scale)

    def _add(self, layer: Layer, cost: Cost, scale: float) -> None:
        shapes = [(tensor.name, scale_shape(layer, tensor, scale)) for tensor in layer.tensors]
        rows = scale_rows(layer, batch=self.batch, scale=scale)
        module: nn.Module
        if layer.kind is Kind.LINEAR:
            columns_out, columns_in = shapes[0][1]
            sizes = (columns_in, columns_out)
            module = ReplayedLinear(self.device, cost, rows=rows, sizes=sizes, bias=len(shapes) > 1)
        elif layer.kind is Kind.EMBEDDING:
            length, columns = shapes[0][1]
            self.tokens.append((length, rows))
            module = ReplayedEmbedding(self.device, cost, sizes=(length, columns))
        else:
            prefix = f"{layer.name}."
            module = ReplayedLayer(self.device, cost, [(name.removeprefix(prefix), shape) for name, shape in shapes])
        self.layers[layer.name.replace(".", "_")] = module

    def forward(self, *tokens: torch.Tensor) -> torch.Tensor:
        chain, lookups = torch.zeros(1), iter(tokens)
        for layer in self.layers.values():
            if isinstance(layer, ReplayedEmbedding):
                chain = layer(next(lookups), chain)
            elif isinstance(layer, ReplayedLinear):
                chain = layer(_Reshape.to(chain, (layer.rows, layer.in_features)))
            else:
                chain = layer(chain)
        return chain

    def make_batch(self, rank: int, step: int) -> tuple[torch.Tensor, ...]:
        """Tokens for each embedding, some much more often than others, as in a language."""
        random = torch.Generator().manual_seed(rank * 1_000_003 + step)
        return tuple((torch.rand(count, generator=random) ** 3 * length).long() for length, count in self.tokens)


class _Reshape(torch.autograd.Function):
    """Hands the chain on in another shape: what lies between two layers takes no time here."""

    @classmethod
    def to(cls, chain: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        if chain.shape == shape:
            return chain
        reshaped: torch.Tensor = cls.apply(chain, shape)  # type: ignore[no-untyped-call]
        return reshaped

    @staticmethod
    def forward(ctx: Any, chain: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        ctx.shape = chain.shape
        return chain.new_zeros(shape)

    @staticmethod
    def backward(ctx: Any, *deltas: torch.Tensor) -> tuple[Any, ...]:
        return deltas[0].new_ones(ctx.shape), None
