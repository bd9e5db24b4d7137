"""What a rank reports of its loss: the terms that it adds up, in numbers that all ranks can compare."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import msgspec

from undertow.core.decoding import Count

MATCHING = 1e-6  # relative; what a script computes in float32 is no closer


class Kind(enum.IntEnum):
    SUM = 0  # of `elements` values
    MEAN = 1  # of `elements` values
    COUNTED = 2  # a mean over `amount`, which the loss function has counted itself
    OTHER = 3  # not known to be any of these


class Scales(msgspec.Struct, frozen=True):
    """The numbers that a script scales one term with."""

    divisors: tuple[float, ...] = ()  # the last division first
    factors: tuple[float, ...] = ()  # inverted
    computed: tuple[bool, ...] = ()  # of each divisor whether it is a tensor, not a number of Python's

    def __post_init__(self) -> None:
        if len(self.computed) != len(self.divisors):
            raise ValueError(f"{len(self.divisors)} divisors, of which {len(self.computed)} are known")


class Stage(msgspec.Struct, frozen=True):
    """One reduction of several.  Its kind is OTHER if what is made of it is not linear."""

    kind: Kind
    sizes: tuple[Count, ...]  # of the dimensions that it goes over; none: whatever they are, the batch is among them
    is_first: bool = False  # the first dimension is among them
    elements: Count = 0


class Term(msgspec.Struct, frozen=True):
    """One term of the loss of one rank."""

    kind: Kind
    elements: Count = 0
    sizes: tuple[Count, ...] = ()  # of what it is a sum or mean of
    amount: float = 0.0
    scales: Scales = Scales()
    stages: tuple[Stage, ...] = ()  # reductions below it
    is_loss: bool = False  # a loss function of torch's, which is over the batch


class Report(msgspec.Struct, frozen=True):
    """The loss of one rank.  A rank without samples of its own has 0 of them, and counts for nothing."""

    samples: Count
    terms: tuple[Term, ...]


def vary(values: Sequence[float]) -> bool:
    return any(not math.isclose(value, values[0], rel_tol=MATCHING) for value in values)
