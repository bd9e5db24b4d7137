"""Stage 1 for fully connected layers: the two thin matrices whose product is the weight's gradient.

In: a linear layer's forward and backward.  Out: its activations (K x N) and deltas (K x M), instead of the gradient
(M x N), which is then not computed.
If they are not wanted, or if a compiler, tracer or transform runs the layer, it computes as torch's own layer does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from undertow.plan.profile import LayerKind
from undertow.sync.slot import Field
from undertow.torch.factors.collector import FactorCollector, Factors
from undertow.torch.factors.devices import find_device_obstacle
from undertow.torch.factors.swapping import Swapped, is_eager_call

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class LinearForm:
    """The form of a weight M x N.  `rebuild`, if given, multiplies the joined factors; otherwise the device does."""

    kind = LayerKind.LINEAR

    def __init__(self, weight: torch.nn.Parameter, rebuild: Multiply | None = None) -> None:
        self._weight = weight
        self._rebuild = rebuild

    @property
    def fields(self) -> Sequence[Field]:
        height, depth = self._weight.shape
        return Field(depth), Field(height)

    def join(self, factors: Sequence[Factors]) -> Factors:
        return factors[0] if len(factors) == 1 else tuple(torch.cat(column) for column in zip(*factors, strict=True))

    def split(self, gradient: torch.Tensor) -> None:
        return None

    def make(self, factors: Sequence[Factors], workers: int) -> torch.Tensor:
        # 16-bit numbers are summed in float32, as everywhere.
        dtype = torch.promote_types(self._weight.dtype, torch.float32)
        result = torch.empty(self._weight.shape, dtype=dtype, device=self._weight.device)
        if not factors:
            return result.zero_()
        activations, deltas = (
            torch.cat([factor.to(result.device, dtype) for factor in column]) for column in zip(*factors, strict=True)
        )
        if self._rebuild is not None:
            return self._rebuild(activations, deltas)
        return torch.addmm(result, deltas.t(), activations, beta=0, alpha=1 / workers, out=result)


class FactoredLinear(Swapped):
    """Mixin for a linear layer's own class."""

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        # If the module was moved to another device after it was planned, its gradient is sent as a whole.
        if not is_eager_call(input) or not self.feeds(self.weight) or find_device_obstacle(self.weight):
            unchanged: torch.Tensor = super().forward(input)  # type: ignore[misc]
            return unchanged
        output: torch.Tensor = _Linear.apply(input, self.weight, self.bias, self._undertow_collector)  # type: ignore[no-untyped-call]
        return output


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, collector: FactorCollector
    ) -> torch.Tensor:
        # Autocast must not cache its copy of the weight: it is made here without autograd, so others cannot use it.
        is_cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            output = functional.linear(input, weight, bias)
        finally:
            torch.set_autocast_cache_enabled(is_cached)
        ctx.save_for_backward(input, weight if ctx.needs_input_grad[0] else None)
        ctx.shape = weight.shape
        ctx.collector = collector
        ctx.dtypes = (output.dtype, input.dtype, weight.dtype, None if bias is None else bias.dtype)
        return output

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[Any, ...]:
        # The originals, not copies in autocast's type: with `create_graph` the graph continues from them.
        input, weight = ctx.saved_tensors
        dtype, input_dtype, weight_dtype, bias_dtype = ctx.dtypes
        height, depth = ctx.shape
        input = input.to(dtype)
        needs_input, needs_weight, needs_bias, _ = ctx.needs_input_grad
        deltas = outputs[0].reshape(-1, height)
        activations = input.reshape(-1, depth)
        to_input = deltas.mm(weight.to(dtype)).view(input.shape).to(input_dtype) if needs_input else None
        to_bias = deltas.sum(0).to(bias_dtype) if needs_bias else None
        to_weight = None
        if needs_weight:
            to_weight = ctx.collector.hand_over(
                (activations, deltas), lambda: deltas.t().mm(activations).to(weight_dtype)
            )
        return to_input, to_weight, to_bias, None
