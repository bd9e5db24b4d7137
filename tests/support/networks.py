"""Small networks of every kind that gates must support, and their training data."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))

    def forward(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(inputs)
        return outputs

    @staticmethod
    def make_batch(generator: torch.Generator) -> torch.Tensor:
        return torch.randn(8, 16, generator=generator)


class Cnn(nn.Module):
    """Network with batch norm, whose buffers follow rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.second = nn.Sequential(nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16 * 4, 4)

    def forward(self, images: torch.Tensor, step: int) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.second(self.first(images)).flatten(1))
        return outputs

    @staticmethod
    def make_batch(generator: torch.Generator) -> torch.Tensor:
        return torch.randn(6, 1, 8, 8, generator=generator)


class Transformer(nn.Module):
    """Network whose embedding is also its output layer, with a parameter of the outermost module."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.position = nn.Parameter(torch.randn(10, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor, step: int) -> torch.Tensor:
        hidden = self.encoder(self.embedding(tokens) + self.position)
        return F.linear(hidden, self.embedding.weight)

    @staticmethod
    def make_batch(generator: torch.Generator) -> torch.Tensor:
        return torch.randint(50, (4, 10), generator=generator)


class Lottery(nn.Module):
    """Network with another graph at every step: other layers, in another order, some twice, some not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(5))
        self.gains = nn.ParameterList(torch.ones(16) for _ in range(3))

    def forward(self, inputs: torch.Tensor, step: int) -> torch.Tensor:
        draw = random.Random(step)
        for index in draw.choices(range(5), k=draw.randint(1, 4)):
            layer = self.layers[index]
            checkpointed: Any = torch.utils.checkpoint.checkpoint(layer, inputs, use_reentrant=False)
            inputs = torch.tanh(checkpointed if draw.random() < 0.3 else layer(inputs))
            inputs = inputs * self.gains[draw.randrange(3)]
        return inputs

    @staticmethod
    def make_batch(generator: torch.Generator) -> torch.Tensor:
        return torch.randn(8, 16, generator=generator)


NETWORKS = {kind.__name__: kind for kind in (Mlp, Cnn, Transformer, Lottery)}
