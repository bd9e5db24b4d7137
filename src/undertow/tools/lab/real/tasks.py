"""Tasks that compute for real: model, data and loss behind one interface.

In: a name of `REAL_NAMES`.  Out: a `Task`.  Models start from the same weights on every rank; batches
depend only on rank and step, so two runs see the same numbers.
The data needs no download and can be learnt: images, sentences, and windows of a text that every machine
has, the source of Python's standard library.
"""

from __future__ import annotations

import sysconfig
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from undertow.errors import ConfigError
from undertow.tools.lab.real import CIFAR, GPT, REAL_NAMES, SOCKEYE
from undertow.tools.lab.real.models import ConvNet, Gpt, GptShape, Sockeye
from undertow.tools.zoo import NETWORKS
from undertow.tools.zoo.catalogue import unknown_name
from undertow.tools.zoo.network import Network, Size, walk
from undertow.tools.zoo.sockeye import Dimensions

Batch = tuple[torch.Tensor, ...]

_BATCH = 8
_SEED = 1
_HEAD_SHARE = 0.3  # an auxiliary head's share of the loss, as in the Inception papers
_MOST_RANKS = 4096
# torch's generator on the CPU uses only the low 32 bits of a seed.
_SEED_BITS = 32
PATTERNS = 10  # classes that occur, however many the network has
WORDS = 50  # words that occur, however many the vocabulary has
_PATTERN_SEED = (1 << _SEED_BITS) - 1  # not the seed of any rank and step
_CELLS = 2  # width of a pattern in coloured squares, which are large enough to survive pooling
_NOISE = 0.5
_CONTRAST = 0.25  # low: networks without batch norm start with small activations
MOST_BYTES = 2 << 20


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Task of a worker that computes for real."""

    name: str
    batch: int  # samples per worker and step
    learning_rate: float  # of plain SGD

    def make_model(self) -> nn.Module:
        """Return a model with the same weights on every call, without a change of torch's global random state."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            return self._build()

    @abstractmethod
    def _build(self) -> nn.Module: ...

    @abstractmethod
    def make_batch(self, rank: int, step: int) -> Batch:
        """Return the same numbers for the same rank and step."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor: ...


@dataclass(frozen=True, kw_only=True)
class ImageTask(Task):
    """Network of the zoo, on images of 32 x 32."""

    network: Network
    learning_rate: float = 0.003

    def _build(self) -> nn.Module:
        return ConvNet(self.network)

    def make_batch(self, rank: int, step: int) -> Batch:
        classes = walk(self.network)[-1].node.out
        return draw_images(make_generator(rank, step), count=self.batch, classes=classes, pixels=self.network.input[-1])

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        images, labels = batch
        main, *heads = (F.cross_entropy(logits, labels) for logits in model(images))
        return torch.stack([main, *(_HEAD_SHARE * head for head in heads)]).sum()


@dataclass(frozen=True, kw_only=True)
class TranslationTask(Task):
    """Translator with its whole vocabulary; it learns to reverse short sentences."""

    learning_rate: float = 0.5
    dims: Dimensions = field(default_factory=lambda: Dimensions(tokens=8))

    def _build(self) -> nn.Module:
        return Sockeye(self.dims)

    def make_batch(self, rank: int, step: int) -> Batch:
        return draw_sentences(make_generator(rank, step), count=self.batch, tokens=self.dims.tokens)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        source, fed, target = batch
        return F.cross_entropy(model(source, fed).flatten(0, 1), target.flatten())


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Small GPT, on the source of Python's standard library."""

    learning_rate: float = 0.03
    shape: GptShape = field(default_factory=GptShape)

    def _build(self) -> nn.Module:
        return Gpt(self.shape)

    def make_batch(self, rank: int, step: int) -> Batch:
        windows = draw_windows(load_text(), make_generator(rank, step), count=self.batch, length=self.shape.context + 1)
        return windows[:, :-1], windows[:, 1:]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        text, following = batch
        return F.cross_entropy(model(text).flatten(0, 1), following.flatten())


def make_task(name: str, *, batch: int | None = None) -> Task:
    """Return the task of this name; `batch` is the number of samples per worker and step."""
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


def make_generator(rank: int, step: int) -> torch.Generator:
    """Return a generator that is different for each rank and step, and the same in each run."""
    seed = (step * _MOST_RANKS + rank) % (1 << _SEED_BITS)
    return torch.Generator().manual_seed(seed)


def draw_images(
    generator: torch.Generator, *, count: int, classes: int, pixels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images, each of which shows its class's pattern with noise, and the classes."""
    same = torch.Generator().manual_seed(_PATTERN_SEED)
    patterns = torch.randn(PATTERNS, 3, _CELLS, _CELLS, generator=same)
    chosen = torch.randint(PATTERNS, (count,), generator=generator)
    images = F.interpolate(patterns[chosen], size=(pixels, pixels))
    noise = torch.randn(images.shape, generator=generator) * _NOISE
    return (images + noise) * _CONTRAST, chosen * (classes // PATTERNS)


def draw_sentences(
    generator: torch.Generator, *, count: int, tokens: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return sentences of the source, the decoder's input, and the translations.

    A translation is the reversed sentence; the decoder's input is the translation one word later.  Word 0 begins a
    sentence and occurs nowhere else.
    """
    source = torch.randint(1, WORDS + 1, (count, tokens), generator=generator)
    target = source.flip(1)
    fed = torch.cat((torch.zeros_like(target[:, :1]), target[:, :-1]), dim=1)
    return source, fed, target


@cache
def load_text(most_bytes: int = MOST_BYTES) -> torch.Tensor:
    """Return the concatenated modules of the standard library, by name, up to `most_bytes`."""
    return read_text(Path(sysconfig.get_path("stdlib")), most_bytes)


def read_text(folder: Path, most_bytes: int) -> torch.Tensor:
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= most_bytes:
            break
    if not text:
        raise ConfigError(
            f"no *.py in {folder}: this Python has no sources to train on; use an installation that has them"
        )
    return torch.frombuffer(text[:most_bytes], dtype=torch.uint8)


def draw_windows(text: torch.Tensor, generator: torch.Generator, *, count: int, length: int) -> torch.Tensor:
    """Return `count` windows of `length` bytes from anywhere in the text, as int64."""
    if len(text) < length:
        raise ConfigError(f"a text of {len(text)} bytes has no window of {length} bytes; give a longer text")
    starts = torch.randint(len(text) - length + 1, (count, 1), generator=generator)
    return text[starts + torch.arange(length)].long()
