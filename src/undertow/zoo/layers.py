"""The first reading of a network: its layers, as the plan sees them.

In: a description.  Out: a `Layer` for each convolution and linear layer, in the order of the forward
pass, with the tensors as torch shapes them, and the flops of one sample.
"""

from __future__ import annotations

import math

from undertow.plan.profile import Kind
from undertow.zoo.model import Layer, Tensor
from undertow.zoo.network import Conv, Linear, Network, Shape
from undertow.zoo.walk import walk


def read_layers(network: Network) -> tuple[Layer, ...]:
    return tuple(
        _read_conv(visit.node, visit.taken, visit.made)
        if isinstance(visit.node, Conv)
        else _read_linear(visit.node, visit.taken)
        for visit in walk(network)
    )


def linear_layer(name: str, inputs: int, outputs: int, *, bias: bool = True, vectors: int = 1) -> Layer:
    """A fully connected layer that multiplies `vectors` rows per sample."""
    tensors = [Tensor(f"{name}.weight", (outputs, inputs))]
    if bias:
        tensors.append(Tensor(f"{name}.bias", (outputs,)))
    flops = 2.0 * inputs * outputs * vectors
    return Layer(name=name, kind=Kind.LINEAR, tensors=tuple(tensors), flops=flops, vectors=vectors)


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
    return Layer(name=node.name, kind=Kind.CONV, tensors=tuple(tensors), flops=2.0 * weight.size * height * width)
