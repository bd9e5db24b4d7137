"""What the plan and the simulator need to know of a network: its layers, in order, with their tensors and work.

In: nothing; these are the words.  Out: `Model`, made of `Layer`s, made of `Tensor`s.
Never imports a framework.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from undertow.plan.profile import Kind


@dataclass(frozen=True)
class Tensor:
    """A parameter, by its full name."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Tensors that are used together; a convolution's batch norm belongs to the convolution."""

    name: str
    kind: Kind
    tensors: tuple[Tensor, ...]
    flops: float  # forward, one sample; a multiply-add counts 2
    vectors: int = 1  # LINEAR and EMBEDDING: rows of the activation matrix per sample, so K = batch * vectors

    @property
    def size(self) -> int:
        """How many elements its tensors have."""
        return sum(tensor.size for tensor in self.tensors)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network at its published input size, and how fast one published device trains it."""

    name: str
    title: str
    layers: tuple[Layer, ...]  # in the order of the forward pass
    batch: int  # samples per worker
    samples_per_s: float  # of one device
    source: str  # where the rate comes from

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """All parameters, in the order of the forward pass."""
        return tuple(tensor for layer in self.layers for tensor in layer.tensors)

    @cached_property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def flops(self) -> float:
        """Of the forward pass of one sample."""
        return sum(layer.flops for layer in self.layers)

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Each layer's share of the compute, by flops."""
        return tuple(layer.flops / self.flops for layer in self.layers)

    @property
    def iteration_s(self) -> float:
        """Pure compute of one step."""
        return self.batch / self.samples_per_s

    @property
    def forward_s(self) -> float:
        # F:B = 1:2: the backward pass multiplies twice, for the weights and for the inputs.
        return self.iteration_s / 3

    @property
    def backward_s(self) -> float:
        return self.iteration_s * 2 / 3

    @property
    def flops_per_s(self) -> float:
        """The device's effective rate, forward and backward."""
        return 3 * self.flops * self.batch / self.iteration_s
