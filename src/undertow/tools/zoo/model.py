"""Models for the plan and the simulator: layers, in order, with their tensors and flops.

In: a description.  Out: `Layer`s, made of `Tensor`s; the profile of a `Model`, as the planner sees it before anything
has been measured, with times by each layer's share of the flops.  Never imports a framework.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile
from undertow.tools.zoo.network import Conv, Linear, Network, Shape, walk


@dataclass(frozen=True)
class Tensor:
    """Parameter with its full name."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Layer: tensors that are used together, such as those of a convolution and its batch norm."""

    name: str
    kind: LayerKind
    tensors: tuple[Tensor, ...]
    flops: float  # forward, one sample; a multiply-add counts 2
    vectors: int = 1  # LINEAR and EMBEDDING: rows of the activation matrix per sample, so K = batch * vectors

    @property
    def size(self) -> int:
        return sum(tensor.size for tensor in self.tensors)


@dataclass(frozen=True, kw_only=True)
class Model:
    """Network at its published input size, with the rate at which one published device trains it."""

    name: str
    title: str
    layers: tuple[Layer, ...]  # in the order of the forward pass
    batch: int  # samples per worker
    samples_per_s: float  # of one device
    source: str  # where the rate comes from

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for layer in self.layers for tensor in layer.tensors)

    @cached_property
    def parameters(self) -> int:
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def flops(self) -> float:
        """Operations of the forward pass of one sample."""
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


def read_layers(network: Network) -> tuple[Layer, ...]:
    """Return a layer for each convolution and linear layer of a network, in the order of the forward pass."""
    return tuple(
        _read_conv(visit.node, visit.taken, visit.made)
        if isinstance(visit.node, Conv)
        else _read_linear(visit.node, visit.taken)
        for visit in walk(network)
    )


def linear_layer(name: str, inputs: int, outputs: int, *, bias: bool = True, vectors: int = 1) -> Layer:
    """Return a fully connected layer that multiplies `vectors` rows per sample."""
    tensors = [Tensor(f"{name}.weight", (outputs, inputs))]
    if bias:
        tensors.append(Tensor(f"{name}.bias", (outputs,)))
    flops = 2.0 * inputs * outputs * vectors
    return Layer(name=name, kind=LayerKind.LINEAR, tensors=tuple(tensors), flops=flops, vectors=vectors)


def _read_linear(node: Linear, taken: Shape) -> Layer:
    return linear_layer(node.name, math.prod(taken), node.out)


def _read_conv(node: Conv, taken: Shape, made: Shape) -> Layer:
    weight = Tensor(f"{node.name}.weight", (node.out, taken[0] // node.groups, *node.kernel))
    tensors = [weight]
    if node.bias:
        tensors.append(Tensor(f"{node.name}.bias", (node.out,)))
    if node.norm:
        tensors += [Tensor(f"{node.norm}.weight", (node.out,)), Tensor(f"{node.norm}.bias", (node.out,))]
    _, height, width = made
    return Layer(name=node.name, kind=LayerKind.CONV, tensors=tuple(tensors), flops=2.0 * weight.size * height * width)


def profile_model(model: Model, *, batch: int | None = None) -> Profile:
    """Return the profile of one step of the published device with this many samples."""
    samples = batch or model.batch
    stretch = samples / model.batch
    return Profile(
        layers=tuple(
            LayerProfile(
                name=layer.name,
                tensors=_profile_tensors(layer, samples),
                forward_s=model.forward_s * share * stretch,
                backward_s=model.backward_s * share * stretch,
            )
            for layer, share in zip(model.layers, model.shares, strict=True)
        )
    )


def _profile_tensors(layer: Layer, samples: int) -> tuple[TensorProfile, ...]:
    rows = samples * layer.vectors
    has_rows = layer.kind in (LayerKind.LINEAR, LayerKind.EMBEDDING)
    return tuple(
        TensorProfile(
            name=tensor.name,
            shape=tensor.shape,
            kind=layer.kind,
            rows=min(rows, tensor.shape[0]) if layer.kind is LayerKind.EMBEDDING else rows,
        )
        if has_rows and len(tensor.shape) > 1
        else TensorProfile(name=tensor.name, shape=tensor.shape, kind=layer.kind)
        for tensor in layer.tensors
    )
