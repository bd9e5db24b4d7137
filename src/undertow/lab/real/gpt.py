"""A small decoder-only transformer: bytes in, logits of the next byte out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

BYTES = 256  # the whole vocabulary


@dataclass(frozen=True, kw_only=True)
class GptShape:
    width: int = 192
    depth: int = 4
    heads: int = 6
    context: int = 64  # bytes that it looks at


class Attention(nn.Module):
    """Each place attends to itself and the places before."""

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
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width)
        self.widen = nn.Linear(shape.width, 4 * shape.width)
        self.narrow = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        made: torch.Tensor = x + self.narrow(F.gelu(self.widen(self.norm2(x))))
        return made


class Gpt(nn.Module):
    """The head is not tied to the embedding: one gradient is rows, the other has factors."""

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
