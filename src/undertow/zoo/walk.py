"""Follows the shapes through a network.

In: a description.  Out: a visit of each convolution and linear layer, in the order of the forward
pass, with the shape that it takes and the shape that it makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from undertow.zoo.network import (
    AuxiliaryHead,
    Branches,
    Chain,
    Conv,
    GlobalPool,
    Linear,
    Network,
    Node,
    Pool,
    Residual,
    Shape,
)


@dataclass(frozen=True)
class Visit:
    node: Conv | Linear
    taken: Shape
    made: Shape


def walk(network: Network) -> tuple[Visit, ...]:
    """All layers that have parameters, in the order of the forward pass."""
    visits: list[Visit] = []
    _follow(network.body, network.input, visits)
    return tuple(visits)


def _follow(node: Node, shape: Shape, visits: list[Visit]) -> Shape:
    """The shape behind `node`; its layers are added to `visits`."""
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
