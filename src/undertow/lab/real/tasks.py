"""What a worker really trains: model, data and loss behind one face.

In: a name of `REAL_NAMES`.  Out: a `Task`.  Models start from the same weights on every rank; batches
depend on rank and step alone, so two runs see the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from undertow.errors import ConfigError
from undertow.lab.real.build import ConvNet
from undertow.lab.real.draws import draw_images, draw_sentences, make_generator
from undertow.lab.real.gpt import Gpt, GptShape
from undertow.lab.real.names import CIFAR, GPT, REAL_NAMES, SOCKEYE
from undertow.lab.real.sockeye import Sockeye
from undertow.lab.real.text import draw_windows, load_text
from undertow.zoo import NETWORKS
from undertow.zoo.names import unknown_name
from undertow.zoo.network import Network, Size
from undertow.zoo.sockeye import Dimensions
from undertow.zoo.walk import walk

__all__ = ["REAL_NAMES", "Task", "make_task"]

_BATCH = 8
_SEED = 1
_HEAD_SHARE = 0.3  # an auxiliary head's share of the loss, as in the Inception papers


class Task(Protocol):
    """What a worker trains."""

    @property
    def name(self) -> str: ...

    @property
    def batch(self) -> int:
        """Samples per worker and step."""

    @property
    def learning_rate(self) -> float:
        """With which plain SGD learns it."""

    def make_model(self) -> nn.Module:
        """The same weights on every call."""

    def make_batch(self, rank: int, step: int) -> tuple[torch.Tensor, ...]:
        """The same numbers for the same rank and step."""

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor: ...


@dataclass(frozen=True, kw_only=True)
class ImageTask:
    """A network of the zoo, on images of 32 x 32."""

    name: str
    batch: int
    network: Network
    learning_rate: float = 0.003

    def make_model(self) -> nn.Module:
        with _same_start():
            return ConvNet(self.network)

    def make_batch(self, rank: int, step: int) -> tuple[torch.Tensor, ...]:
        classes = walk(self.network)[-1].node.out
        return draw_images(make_generator(rank, step), count=self.batch, classes=classes, pixels=self.network.input[-1])

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, labels = batch
        main, *heads = (F.cross_entropy(logits, labels) for logits in model(images))
        return torch.stack([main, *(_HEAD_SHARE * head for head in heads)]).sum()


@dataclass(frozen=True, kw_only=True)
class TranslationTask:
    """The translator with its whole vocabulary, on short sentences: say it backwards."""

    name: str
    batch: int
    learning_rate: float = 0.5
    dims: Dimensions = field(default_factory=lambda: Dimensions(tokens=8))

    def make_model(self) -> nn.Module:
        with _same_start():
            return Sockeye(self.dims)

    def make_batch(self, rank: int, step: int) -> tuple[torch.Tensor, ...]:
        return draw_sentences(make_generator(rank, step), count=self.batch, tokens=self.dims.tokens)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        source, fed, target = batch
        return F.cross_entropy(model(source, fed).flatten(0, 1), target.flatten())


@dataclass(frozen=True, kw_only=True)
class TextTask:
    """A small GPT, on the source of Python's standard library."""

    name: str
    batch: int
    learning_rate: float = 0.03
    shape: GptShape = field(default_factory=GptShape)

    def make_model(self) -> nn.Module:
        with _same_start():
            return Gpt(self.shape)

    def make_batch(self, rank: int, step: int) -> tuple[torch.Tensor, ...]:
        windows = draw_windows(load_text(), make_generator(rank, step), count=self.batch, length=self.shape.context + 1)
        return windows[:, :-1], windows[:, 1:]

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        text, following = batch
        return F.cross_entropy(model(text).flatten(0, 1), following.flatten())


def make_task(name: str, *, batch: int | None = None) -> Task:
    """The task of that name; `batch` is the number of samples per worker and step."""
    if name not in REAL_NAMES:
        raise unknown_name("task", name, REAL_NAMES)
    if batch is None:
        batch = _BATCH
    if batch < 1:
        raise ConfigError(f"a batch of {batch} is not possible: at least one sample is needed")
    if name == GPT:
        return TextTask(name=name, batch=batch)
    if name == SOCKEYE:
        return TranslationTask(name=name, batch=batch)
    return ImageTask(name=name, batch=batch, network=NETWORKS[name.removesuffix(CIFAR)](Size.CIFAR))


@contextmanager
def _same_start() -> Iterator[None]:
    """Inside, chance begins at the same place; outside, nothing is disturbed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        yield
