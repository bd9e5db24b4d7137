"""Torch modules that train: the networks of the zoo, its translator, and a small GPT.

In: a description or dimensions.  Out: a module.  Parameters of the zoo's models have the listed names and shapes, and
the forward pass of a network follows its description.
Every layer is called as a module, so that its hooks run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from undertow.tools.zoo.network import (
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
    Visit,
    walk,
)
from undertow.tools.zoo.sockeye import Dimensions

BYTES = 256  # the whole vocabulary of the GPT
_LAYERS = 2  # of the translator, on each side
# Residual bodies start small, or activations would explode after 50 of them; at 0 their layers would have no gradient.
_RESIDUAL_START = 0.1


class ConvNet(nn.Module):
    """Network of the zoo.  In: images.  Out: logits of the main path, then those of the auxiliary heads."""

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
    """Yield the name of the norm that ends the body of each residual."""
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
    """Add `module` to the tree under its dotted name."""
    *path, last = name.split(".")
    for step in path:
        if step not in root._modules:
            root.add_module(step, nn.Module())
        root = root.get_submodule(step)
    root.add_module(last, module)


def _layer(visit: Visit) -> nn.Module:
    node = visit.node
    # Created without values: torch's initialisation is too small for 19 layers without batch norm, and takes a second.
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
            # Small logits: the first loss is the logarithm of the number of classes, and the first updates are small.
            nn.init.normal_(parameter, std=0.01)
        else:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")


class AdditiveAttention(nn.Module):
    """Attention (Bahdanau et al., 2014): which states of the source matter for the next word."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.key = nn.Linear(units, units, bias=False)
        self.query = nn.Linear(units, units, bias=False)
        self.score = nn.Linear(units, 1, bias=False)

    def forward(self, hidden: torch.Tensor, keys: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Attend from one state of the decoder to the encoder's states, by their keys."""
        scores = self.score(torch.tanh(self.query(hidden) + keys))
        return (torch.softmax(scores, dim=1) * states).sum(dim=1, keepdim=True)


class Sockeye(nn.Module):
    """Translator with LSTMs, attention and input feeding.

    In: tokens of the source, and of the target up to the word before.  Out: logits of the target's words.
    """

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        units = dims.units
        self.source = nn.Embedding(dims.source_words, units)
        self.encoder = nn.ModuleList(nn.LSTM(units, units, batch_first=True) for _ in range(_LAYERS))
        self.start = nn.ModuleList(nn.Linear(units, units) for _ in range(_LAYERS))
        self.attention = AdditiveAttention(units)
        self.target = nn.Embedding(dims.target_words, units)
        self.decoder = nn.ModuleList(
            nn.LSTM(inputs, units, batch_first=True) for inputs in (2 * units, *[units] * (_LAYERS - 1))
        )
        self.combine = nn.Linear(2 * units, units)
        self.output = nn.Linear(units, dims.target_words)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        states, carried = self._encode(source)
        keys = self.attention.key(states)
        words = self.target(target)
        attended = torch.zeros_like(words[:, :1])
        outputs = []
        for place in range(target.shape[1]):
            hidden, carried = self._decode(torch.cat((words[:, place : place + 1], attended), dim=2), carried)
            context = self.attention(hidden, keys, states)
            attended = torch.tanh(self.combine(torch.cat((context, hidden), dim=2)))
            outputs.append(attended)
        logits: torch.Tensor = self.output(torch.cat(outputs, dim=1))
        return logits

    def _encode(self, source: torch.Tensor) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """Return the states of the last layer, and the initial states of the decoder's layers."""
        x = self.source(source)
        carried = []
        for lstm, start in zip(self.encoder, self.start, strict=True):
            x, (last, cell) = lstm(x)
            carried.append((torch.tanh(start(last)), torch.zeros_like(cell)))
        return x, carried

    def _decode(
        self, x: torch.Tensor, carried: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """Decode one word."""
        after = []
        for lstm, before in zip(self.decoder, carried, strict=True):
            x, state = lstm(x, before)
            after.append(state)
        return x, after


@dataclass(frozen=True, kw_only=True)
class GptShape:
    width: int = 192
    depth: int = 4
    heads: int = 6
    context: int = 64  # bytes


class SelfAttention(nn.Module):
    """Causal attention: each position attends to itself and to the positions before."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.mix = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, places, width = x.shape
        split = self.mix(x).view(samples, places, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        made: torch.Tensor = self.out(seen.transpose(1, 2).reshape(samples, places, width))
        return made


class Block(nn.Module):
    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width)
        self.attention = SelfAttention(shape)
        self.norm2 = nn.LayerNorm(shape.width)
        self.widen = nn.Linear(shape.width, 4 * shape.width)
        self.narrow = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        made: torch.Tensor = x + self.narrow(F.gelu(self.widen(self.norm2(x))))
        return made


class Gpt(nn.Module):
    """Decoder-only transformer: bytes in, logits of the next byte out.

    The head is not tied to the embedding, so one gradient has rows and the other factors.
    """

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.token = nn.Embedding(BYTES, shape.width)
        self.place = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, BYTES)
        for embedding in (self.token, self.place):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.token(text) + self.place(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits
