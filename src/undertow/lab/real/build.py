"""The second reading of a network: a torch module that trains.

In: a description of the zoo.  Out: a module whose parameters have the names and shapes of the
first reading, and whose forward pass follows the same expression.
Every layer is called as a module, so hooks see it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import assert_never

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

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
    Pooling,
    Residual,
)
from undertow.zoo.walk import Visit, walk

# Residual bodies start quiet, or 50 of them in a row shout; not silent, or their layers would have no gradient.
_RESIDUAL_START = 0.1


class ConvNet(nn.Module):
    """Images in; logits out, those of the main path first, then those of the auxiliary heads."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        for visit in walk(network):
            _place(self, visit.node.name, _layer(visit))
            if isinstance(visit.node, Conv) and visit.node.norm:
                _place(self, visit.node.norm, nn.BatchNorm2d(visit.node.out))
        for norm in _last_norms(network.body):
            nn.init.constant_(self.get_parameter(f"{norm}.weight"), _RESIDUAL_START)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads: list[torch.Tensor] = []
        main = self._run(self.network.body, images, heads)
        return (main, *heads)

    def _run(self, node: Node, x: torch.Tensor, heads: list[torch.Tensor]) -> torch.Tensor:
        match node:
            case Conv():
                return self._convolve(node, x)
            case Linear():
                made: torch.Tensor = self.get_submodule(node.name)(x.flatten(1))
                return F.relu(made) if node.relu else made
            case Pool():
                return _pool(node, x)
            case GlobalPool():
                return x.mean(dim=(2, 3), keepdim=True)
            case Chain(parts):
                for part in parts:
                    x = self._run(part, x, heads)
                return x
            case Branches(parts):
                return torch.cat([self._run(part, x, heads) for part in parts], dim=1)
            case Residual(body, shortcut):
                made = self._run(body, x, heads)
                return F.relu(made + (self._run(shortcut, x, heads) if shortcut else x))
            case AuxiliaryHead(body):
                heads.append(self._run(body, x, heads))
                return x
            case _:
                assert_never(node)

    def _convolve(self, node: Conv, x: torch.Tensor) -> torch.Tensor:
        x = self.get_submodule(node.name)(x)
        if node.norm:
            x = self.get_submodule(node.norm)(x)
        return F.relu(x) if node.relu else x


def _last_norms(node: Node) -> Iterator[str]:
    """The norm that ends the body of each residual."""
    match node:
        case Chain(parts) | Branches(parts):
            for part in parts:
                yield from _last_norms(part)
        case Residual(Chain((*_, Conv(norm=norm)))):
            yield norm


def _pool(node: Pool, x: torch.Tensor) -> torch.Tensor:
    pool = F.max_pool2d if node.pooling is Pooling.MAX else F.avg_pool2d
    return pool(x, node.kernel, node.stride, node.padding, ceil_mode=node.ceil)


def _place(root: nn.Module, name: str, module: nn.Module) -> None:
    """Hang `module` into the tree under its dotted name."""
    *path, last = name.split(".")
    for step in path:
        if step not in root._modules:
            root.add_module(step, nn.Module())
        root = root.get_submodule(step)
    root.add_module(last, module)


def _layer(visit: Visit) -> nn.Module:
    node = visit.node
    # Made without values: torch's own start is too small for 19 layers without batch norm, and costs a second more.
    if isinstance(node, Linear):
        layer: nn.Module = nn.Linear(math.prod(visit.taken), node.out, device="meta")
    else:
        layer = nn.Conv2d(
            visit.taken[0],
            node.out,
            node.kernel,
            stride=node.stride,
            padding=node.padding,
            groups=node.groups,
            bias=node.bias,
            device="meta",
        )
    layer.to_empty(device=torch.get_default_device())
    _start(layer, is_last=isinstance(node, Linear) and not node.relu)
    return layer


def _start(layer: nn.Module, *, is_last: bool) -> None:
    for name, parameter in layer.named_parameters():
        if name == "bias":
            nn.init.zeros_(parameter)
        elif is_last:
            # Small logits: the first loss is the logarithm of the number of classes, and the first steps are short.
            nn.init.normal_(parameter, std=0.01)
        else:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")
