"""A rank's report about its loss: the terms that it adds up, as numbers that all ranks can compare."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import msgspec

from undertow.decoding import Count

MATCHING = 1e-6  # relative; numbers that a script computes in float32 are no closer


class ReductionKind(enum.IntEnum):
    """The kind of a reduction, if it is known."""

    SUM = 0  # of `elements` values
    MEAN = 1  # of `elements` values
    COUNTED = 2  # a mean over `amount`, which the loss function itself has counted
    OTHER = 3  # unknown


class TermScales(msgspec.Struct, frozen=True):
    """The numbers by which a script scales one term."""

    divisors: tuple[float, ...] = ()  # the last division comes first
    factors: tuple[float, ...] = ()  # the inverse of each factor
    computed: tuple[bool, ...] = ()  # for each divisor, whether it is a tensor rather than a Python number

    def __post_init__(self) -> None:
        if len(self.computed) != len(self.divisors):
            raise ValueError(f"{len(self.divisors)} divisors, but {len(self.computed)} entries in `computed`")


class Reduction(msgspec.Struct, frozen=True):
    """A reduction below a term.  Its kind is OTHER unless the term is linear in its result."""

    kind: ReductionKind
    sizes: tuple[Count, ...]  # of the reduced dimensions; empty: unknown, and the batch is among them
    is_first: bool = False  # the first dimension is reduced
    elements: Count = 0


class Term(msgspec.Struct, frozen=True):
    """A term of the loss of one rank."""

    kind: ReductionKind
    elements: Count = 0
    sizes: tuple[Count, ...] = ()  # the shape of what it sums or averages
    amount: float = 0.0
    scales: TermScales = TermScales()
    reductions: tuple[Reduction, ...] = ()  # below it
    is_loss: bool = False  # one of torch's loss functions, which reduce over the batch


class Report(msgspec.Struct, frozen=True):
    """The loss of one rank.  `samples` is 0 on a rank that has none of its own, and whose weight is 0."""

    samples: Count
    terms: tuple[Term, ...]


def vary(values: Sequence[float]) -> bool:
    return any(not math.isclose(value, values[0], rel_tol=MATCHING) for value in values)
