"""Descriptions of convolutional networks, and the shapes that follow from them.

A description is an expression of these nodes.  `zoo.model` turns it into a list of layers
with shapes and flops; `lab.real.models` turns it into a torch module that trains.
Layers without tensors and with hardly any flops (dropout, local response norm, softmax) are left out.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

Pair: TypeAlias = tuple[int, int]  # height and width
Shape: TypeAlias = tuple[int, int, int]  # channels, height, width


class Size(enum.Enum):
    """Size of the images: as published, or 32 x 32, which a CPU can train."""

    PUBLISHED = "published"
    CIFAR = "cifar"


class Pooling(enum.Enum):
    MAX = "max"
    AVERAGE = "average"


@dataclass(frozen=True, kw_only=True)
class Conv:
    """Convolution, with its batch norm if it has one, and the ReLU after it."""

    name: str
    out: int
    kernel: Pair
    stride: int = 1
    padding: Pair = (0, 0)
    groups: int = 1
    bias: bool = True
    norm: str = ""  # the name of its batch norm; empty: it has none
    relu: bool = True


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Fully connected layer; it flattens its input."""

    name: str
    out: int
    relu: bool = True


@dataclass(frozen=True, kw_only=True)
class Pool:
    pooling: Pooling
    kernel: int
    stride: int
    padding: int = 0
    ceil: bool = False  # a window that extends beyond the edge counts too


@dataclass(frozen=True)
class GlobalPool:
    """Average over height and width."""


@dataclass(frozen=True)
class Chain:
    """Nodes one after another."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Branches:
    """Nodes with the same input; their outputs are concatenated by channel."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Residual:
    """Body plus shortcut, then a ReLU; without a shortcut the input itself is added."""

    body: Node
    shortcut: Node | None = None


@dataclass(frozen=True)
class AuxiliaryHead:
    """Classifier beside the main path, which continues with the unchanged input."""

    body: Node


Node: TypeAlias = Conv | Linear | Pool | GlobalPool | Chain | Branches | Residual | AuxiliaryHead


@dataclass(frozen=True, kw_only=True)
class Network:
    """Whole network, and the shape of its images."""

    input: Shape
    body: Node


def chain(*parts: Node) -> Chain:
    return Chain(parts)


def branches(*parts: Node) -> Branches:
    return Branches(parts)


def square_conv(name: str, out: int, kernel: int, **options: Any) -> Conv:
    """Return a convolution with padding that keeps height and width, apart from its stride."""
    return Conv(name=name, out=out, kernel=(kernel, kernel), padding=(kernel // 2, kernel // 2), **options)


@dataclass(frozen=True)
class Visit:
    """Convolution or linear layer, with the shapes of its input and its output."""

    node: Conv | Linear
    taken: Shape
    made: Shape


def walk(network: Network) -> tuple[Visit, ...]:
    """Return all layers that have parameters, in the order of the forward pass."""
    visits: list[Visit] = []
    _follow(network.body, network.input, visits)
    return tuple(visits)


def _follow(node: Node, shape: Shape, visits: list[Visit]) -> Shape:
    """Return the shape after `node`, and add its layers to `visits`."""
    match node:
        case Conv() | Linear():
            visits.append(Visit(node, shape, _made(node, shape)))
            return visits[-1].made
        case Pool():
            channels, height, width = shape
            return (channels, _pooled(node, height), _pooled(node, width))
        case GlobalPool():
            return (shape[0], 1, 1)
        case Chain(parts):
            for part in parts:
                shape = _follow(part, shape, visits)
            return shape
        case Branches(parts):
            return _concatenated([_follow(part, shape, visits) for part in parts])
        case Residual(body, shortcut):
            made = _follow(body, shape, visits)
            added = _follow(shortcut, shape, visits) if shortcut else shape
            assert made == added, f"a residual adds {added} to {made}"
            return made
        case AuxiliaryHead(body):
            _follow(body, shape, visits)
            return shape
        case _:
            assert_never(node)


def _made(node: Conv | Linear, shape: Shape) -> Shape:
    if isinstance(node, Linear):
        return (node.out, 1, 1)
    height, width = (
        (length + 2 * padding - kernel) // node.stride + 1
        for length, padding, kernel in zip(shape[1:], node.padding, node.kernel, strict=True)
    )
    assert min(height, width) > 0, f"{node.name} leaves nothing of {shape}"
    assert shape[0] % node.groups == node.out % node.groups == 0, f"{node.name} cannot be cut into {node.groups} groups"
    return (node.out, height, width)


def _pooled(node: Pool, length: int) -> int:
    windows, rest = divmod(length + 2 * node.padding - node.kernel, node.stride)
    assert windows >= 0, f"a pooling of {node.kernel} leaves nothing of {length}"
    # A window that would start in the padding does not count (torch's rule, and Caffe's).
    hangs_over = node.ceil and rest > 0 and (windows + 1) * node.stride < length + node.padding
    return windows + 1 + hangs_over


def _concatenated(shapes: list[Shape]) -> Shape:
    _, height, width = shapes[0]
    assert all(shape[1:] == (height, width) for shape in shapes), f"branches of different sizes: {shapes}"
    return (sum(channels for channels, _, _ in shapes), height, width)
