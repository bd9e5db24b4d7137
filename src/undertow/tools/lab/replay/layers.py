"""Layers that take the published time and produce gradients of the published size.

In: the output of the layer before.  Out: a tensor of the right shape, some time later.
To autograd, to hooks and to wrappers they are ordinary modules with ordinary parameters:
a gradient appears when the layer's backward time has passed.
A fully connected layer can hand over its factors instead of its weight's gradient, an
embedding its touched rows (`take_factors`, `take_rows`); `rebuild` then takes the time that
the device would need to compute the gradient from them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from undertow.tools.lab.replay.device import Device

START_WEIGHT = 0.01


class GradientMemory:
    """Memory for a parameter's gradients, which cost nothing to compute.

    A block is lent until the tensor and all its views are gone, and then lent again with its contents.  So gradients
    hold what the last averaging wrote into them, which are ordinary numbers, and neither filling nor page faults
    disturb the measurement.  A second block is made only if the first is still lent.
    """

    def __init__(self, shape: Sequence[int], first_value: float) -> None:
        self._shape = tuple(shape)
        self._first_value = first_value
        self._blocks: list[_Block] = []

    def lend(self) -> torch.Tensor:
        for block in self._blocks:
            if block.is_free:
                return block.lend()
        self._blocks.append(_Block(np.full(self._shape, self._first_value, np.float32)))
        return self._blocks[-1].lend()

    def __reduce__(self) -> tuple[type[GradientMemory], tuple[object, ...]]:
        return GradientMemory, (self._shape, self._first_value)  # a copied model lends memory of its own


class _Block:
    def __init__(self, array: npt.NDArray[np.float32]) -> None:
        self._array = array
        self._borrower: weakref.ref[npt.NDArray[np.float32]] | None = None

    @property
    def is_free(self) -> bool:
        return self._borrower is None or self._borrower() is None

    def lend(self) -> torch.Tensor:
        view = self._array.view()  # torch's storage keeps the view alive, and nothing else does
        self._borrower = weakref.ref(view)
        return torch.from_numpy(view)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of device time in one step."""

    forward_s: float
    input_s: float  # backward, for the gradient of the layer's input
    weight_s: float  # backward, for the gradients of its parameters

    @property
    def backward_s(self) -> float:
        return self.input_s + self.weight_s


class _Replay(torch.autograd.Function):
    """Operation of one layer: returns its result when the device has computed."""

    @staticmethod
    def forward(ctx: Any, layer: Replayed, given: torch.Tensor, chain: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        ctx.layer, ctx.given, ctx.chain_shape = layer, given, chain.shape
        layer.device.compute(layer.cost.forward_s)
        return layer.output(given)

    @staticmethod
    def backward(ctx: Any, *deltas: torch.Tensor) -> tuple[Any, ...]:
        gradients = ctx.layer.gradients(ctx.given, deltas[0])
        return None, None, deltas[0].new_ones(ctx.chain_shape), *gradients


class ReplayedLayer(nn.Module):
    """Layer whose gradients are always dense: a convolution with its norm, an LSTM."""

    def __init__(self, device: Device, cost: Cost, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        super().__init__()
        self.device, self.cost = device, cost
        self._memory = [GradientMemory(shape, device.gradient) for _, shape in shapes]
        for name, shape in shapes:
            self.register_parameter(name.replace(".", "_"), nn.Parameter(torch.full(shape, START_WEIGHT)))

    def forward(self, chain: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = _Replay.apply(self, chain, chain, *self.parameters())  # type: ignore[no-untyped-call]
        return output

    def output(self, given: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1)

    def gradients(self, given: torch.Tensor, delta: torch.Tensor) -> list[torch.Tensor | None]:
        self.device.compute(self.cost.backward_s)
        return [memory.lend() for memory in self._memory]


class ReplayedLinear(nn.Linear):
    """Fully connected layer; its input and its output have the (scaled) shapes of the real one.

    While `take_factors` is set, backward calls it with the activations (K x N) and the deltas
    (K x M); if it takes them, the time of the weight's gradient is skipped and that gradient None.
    """

    take_factors: Callable[[torch.Tensor, torch.Tensor], bool] | None = None

    def __init__(self, device: Device, cost: Cost, *, rows: int, sizes: tuple[int, int], bias: bool = True) -> None:
        columns_in, columns_out = sizes
        super().__init__(columns_in, columns_out, bias=bias, device="meta")
        self.device, self.cost, self.rows = device, cost, rows
        for name, parameter in list(self.named_parameters()):
            self.register_parameter(name, nn.Parameter(torch.full(parameter.shape, START_WEIGHT)))
        self._memory = [GradientMemory(parameter.shape, device.gradient) for parameter in self.parameters()]
        self._rebuilt = GradientMemory(self.weight.shape, 0.0)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = _Replay.apply(self, input, input, *self.parameters())  # type: ignore[no-untyped-call]
        return output

    def output(self, given: torch.Tensor) -> torch.Tensor:
        return given.new_zeros(given.shape[0], self.out_features)

    def gradients(self, given: torch.Tensor, delta: torch.Tensor) -> list[torch.Tensor | None]:
        rest = [memory.lend() for memory in self._memory[1:]]
        if self.take_factors is None:
            self.device.compute(self.cost.backward_s)
            return [self._memory[0].lend(), *rest]
        self.device.compute(self.cost.input_s)
        given = given.detach()
        given.view(-1)[:1] = self.device.gradient  # different on each worker
        if self.take_factors(given, delta):
            return [None, *rest]
        self.device.compute(self.cost.weight_s)
        return [self._memory[0].lend(), *rest]

    @property
    def product_s(self) -> float:
        """Return how long the product of one worker's factors takes."""
        return self.cost.weight_s

    def rebuild(self, activations: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
        """Return the weight's gradient from joined factors, after the time that their product takes.

        Only its first element is computed from them: enough to check that all workers have joined the same ones.
        """
        assert activations.shape[0] == deltas.shape[0], "factors belong together row by row"
        self.device.compute(self.cost.weight_s * activations.shape[0] / self.rows)
        gradient = self._rebuilt.lend()
        gradient.view(-1)[:1] = activations.sum() / activations.shape[0]
        return gradient


class ReplayedEmbedding(nn.Embedding):
    """Embedding; its gradient is dense, as in torch.

    While `take_rows` is set, backward calls it with the tokens and one row of delta per token;
    if it takes them, the gradient is None.  `chain` ties a layer in mid-model to those before.
    """

    take_rows: Callable[[torch.Tensor, torch.Tensor], bool] | None = None

    def __init__(self, device: Device, cost: Cost, *, sizes: tuple[int, int]) -> None:
        super().__init__(*sizes, _weight=torch.full(sizes, START_WEIGHT))
        self.device, self.cost = device, cost
        self._memory = GradientMemory(sizes, device.gradient)
        self._rebuilt = GradientMemory(sizes, 0.0)

    def forward(self, input: torch.Tensor, chain: torch.Tensor | None = None) -> torch.Tensor:
        chain = torch.zeros(1) if chain is None else chain
        output: torch.Tensor = _Replay.apply(self, input, chain, self.weight)  # type: ignore[no-untyped-call]
        return output

    def output(self, given: torch.Tensor) -> torch.Tensor:
        return torch.zeros(given.numel(), self.embedding_dim)

    def gradients(self, given: torch.Tensor, delta: torch.Tensor) -> list[torch.Tensor | None]:
        self.device.compute(self.cost.backward_s)
        if self.take_rows is not None and self.take_rows(given, delta):
            return [None]
        return [self._memory.lend()]

    def rebuild(self, tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the dense gradient from all workers' rows; the time to add rows on a device is negligible."""
        assert tokens.numel() == rows.shape[0], "one row per token"
        gradient = self._rebuilt.lend()
        gradient.view(-1)[:1] = tokens.sum() / 1e9
        return gradient


Replayed: TypeAlias = ReplayedLayer | ReplayedLinear | ReplayedEmbedding
