"""The words in which a convolutional network is described once, to be read in several ways.

A description is an expression of these nodes.  `zoo.layers` reads it as a list of layers
with shapes and flops; `lab.real.build` reads it as a torch module that trains.
What has no tensors and next to no flops (dropout, local response norm, softmax) is not described.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

Pair: TypeAlias = tuple[int, int]  # height and width
Shape: TypeAlias = tuple[int, int, int]  # channels, height, width


class Size(enum.Enum):
    """How large the images are: as published, or 32 x 32, which a CPU can train."""

    PUBLISHED = "published"
    CIFAR = "cifar"


class Pooling(enum.Enum):
    MAX = "max"
    AVERAGE = "average"


@dataclass(frozen=True, kw_only=True)
class Conv:
    """A convolution, its batch norm if it has one, and the rectifier behind it."""

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
    """A fully connected layer; it flattens what comes in."""

    name: str
    out: int
    relu: bool = True


@dataclass(frozen=True, kw_only=True)
class Pool:
    pooling: Pooling
    kernel: int
    stride: int
    padding: int = 0
    ceil: bool = False  # a window that hangs over the edge counts too


@dataclass(frozen=True)
class GlobalPool:
    """The average over height and width."""


@dataclass(frozen=True)
class Chain:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Branches:
    """Side by side from the same input; the outputs are concatenated by channel."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Residual:
    """Body plus shortcut, then the rectifier; without a shortcut the input itself is added."""

    body: Node
    shortcut: Node | None = None


@dataclass(frozen=True)
class AuxiliaryHead:
    """A classifier beside the main path, which goes on with the input unchanged."""

    body: Node


Node: TypeAlias = Conv | Linear | Pool | GlobalPool | Chain | Branches | Residual | AuxiliaryHead


@dataclass(frozen=True, kw_only=True)
class Network:
    """A whole network and the images that it takes."""

    input: Shape
    body: Node


def chain(*parts: Node) -> Chain:
    return Chain(parts)


def branches(*parts: Node) -> Branches:
    return Branches(parts)
