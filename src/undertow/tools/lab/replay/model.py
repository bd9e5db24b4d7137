"""Replayed model: the zoo's layers in the order of the forward pass, on one device.

In: a model of the zoo, a scale, a slowdown of all times.  Out: an `nn.Module` that a wrapper cannot tell from a
real one, and that takes the published time for a forward and a backward pass; its optimizer.

A scale divides every byte count and leaves every time as it is.  Of a matrix M x N with K activation rows, M, N and K
are divided by the square root of the scale, so that M N (the gradient) and K (M + N) (the factors) are divided by the
scale.  Of an embedding, rows and tokens are divided, never columns.  Any other tensor becomes a flat vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from undertow.tools.lab.replay.device import Device
from undertow.tools.lab.replay.layers import Cost, ReplayedEmbedding, ReplayedLayer, ReplayedLinear
from undertow.tools.zoo import Layer, LayerKind, Model, Tensor

MOVED = 64  # elements of each tensor that the optimizer really updates: enough to compare replicas


def scale_shape(layer: Layer, tensor: Tensor, scale: float) -> tuple[int, ...]:
    """Return the replayed shape, which is never empty."""
    if layer.kind is LayerKind.LINEAR:
        return tuple(_divide(length, math.sqrt(scale)) for length in tensor.shape)
    if layer.kind is LayerKind.EMBEDDING:
        return (_divide(tensor.shape[0], scale), *tensor.shape[1:])
    return (_divide(tensor.size, scale),)


def scale_rows(layer: Layer, *, batch: int, scale: float) -> int:
    """Return how many activation rows (samples or tokens) pass through a replayed layer in one step."""
    divisor = math.sqrt(scale) if layer.kind is LayerKind.LINEAR else scale
    return _divide(batch * layer.vectors, divisor)


def _divide(length: int, divisor: float) -> int:
    return max(1, round(length / divisor))


class ReplayedModel(nn.Module):
    """Module of replayed layers; maps a batch of `make_batch` to a tensor whose sum is the loss."""

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
        self.tokens: list[tuple[int, int]] = []  # of each embedding: its rows, and the tokens that a step looks up
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
        if layer.kind is LayerKind.LINEAR:
            columns_out, columns_in = shapes[0][1]
            sizes = (columns_in, columns_out)
            module = ReplayedLinear(self.device, cost, rows=rows, sizes=sizes, bias=len(shapes) > 1)
        elif layer.kind is LayerKind.EMBEDDING:
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
        """Return tokens for each embedding, some of them much more frequent than others, as in a language."""
        random = torch.Generator().manual_seed(rank * 1_000_003 + step)
        return tuple((torch.rand(count, generator=random) ** 3 * length).long() for length, count in self.tokens)


class _Reshape(torch.autograd.Function):
    """Operation that gives the chain another shape, and takes no time."""

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


class ReplayedSGD(torch.optim.Optimizer):
    """Plain SGD on the first elements of every parameter, which costs nothing.

    The published time of an iteration includes the update, and the CPU must stay free for the network.
    """

    def __init__(self, params: Iterable[torch.Tensor], lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.view(-1)[:MOVED].sub_(parameter.grad.view(-1)[:MOVED], alpha=group["lr"])
        return loss
