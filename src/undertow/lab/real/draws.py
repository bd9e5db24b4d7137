"""Chance that is the same in every run: one generator per rank and step.

In: rank and step.  Out: a seeded generator, and the data that needs no file: images and sentences that
can be learnt.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

_MOST_RANKS = 4096
# torch's generator on the CPU looks at the low 32 bits of a seed only.
_SEED_BITS = 32

PATTERNS = 10  # as many classes occur, however many the network knows
WORDS = 50  # as many words occur, however many the vocabulary has
_PATTERN_SEED = (1 << _SEED_BITS) - 1  # no rank and step has it
_CELLS = 2  # a pattern is so many coloured squares wide: poolings leave something of it
_NOISE = 0.5
_CONTRAST = 0.25  # pale: networks without batch norm start with small activations


def make_generator(rank: int, step: int) -> torch.Generator:
    """Different for each rank and step, the same in each run."""
    seed = (step * _MOST_RANKS + rank) % (1 << _SEED_BITS)
    return torch.Generator().manual_seed(seed)


def draw_images(
    generator: torch.Generator, *, count: int, classes: int, pixels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of a class's pattern under noise, and the classes."""
    same = torch.Generator().manual_seed(_PATTERN_SEED)
    patterns = torch.randn(PATTERNS, 3, _CELLS, _CELLS, generator=same)
    chosen = torch.randint(PATTERNS, (count,), generator=generator)
    images = F.interpolate(patterns[chosen], size=(pixels, pixels))
    noise = torch.randn(images.shape, generator=generator) * _NOISE
    return (images + noise) * _CONTRAST, chosen * (classes // PATTERNS)


def draw_sentences(
    generator: torch.Generator, *, count: int, tokens: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sentences of the source, their translations, and these one word later, as a decoder is fed.

    A translation is the sentence backwards.  Word 0 begins a sentence and occurs nowhere else.
    """
    source = torch.randint(1, WORDS + 1, (count, tokens), generator=generator)
    target = source.flip(1)
    fed = torch.cat((torch.zeros_like(target[:, :1]), target[:, :-1]), dim=1)
    return source, fed, target
