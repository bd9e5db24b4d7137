"""Distinguishes counts from constants among the numbers by which a script scales a sum or a mean.

In: one term on all ranks.  Out: the number that makes a sum a mean, if any, and warnings about uncertain cases.
A count of a rank's share adds up over the ranks; a constant would be the same in one process with the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from undertow.sync.batches.reports import MATCHING, ReductionKind, Term, vary

_COUNT = "a sum divided by a number is taken for a mean: the number may be a count of each rank's share of the batch"
_CONSTANT = (
    "a sum divided by a number is taken for a sum over the batch: the number is smaller than a rank's share, so it may "
    "be a constant"
)
_LEAST = (
    "a sum is divided by 1 on some ranks only: if the 1 stands for a count of 0, as after clamp(min=1), those ranks "
    "weigh too much"
)


def is_scaled_by_data(terms: Sequence[Term], samples: Sequence[int]) -> bool:
    """Return whether a script multiplies a mean by a count, or scales it by a number that depends on the share."""
    scales = _find_scales(terms[0])
    multipliers = [scale for scale in scales if scale.name == "factors"]
    return any(vary([scale(term) for term in terms]) for scale in scales) or any(
        max(counts) > 1 and _match([1 / scale(term) if scale(term) else 0.0 for term in terms], counts)
        for scale in multipliers
        for counts in (samples, [term.amount for term in terms])
    )


class SumDivisors:
    """The divisors of one sum.  `found(term)` is the number that makes it a mean; `found` is None if it stays a sum."""

    def __init__(
        self, terms: Sequence[Term], samples: Sequence[int], others: Sequence[Sequence[Term]], batch: int | None
    ) -> None:
        self._terms = terms
        self._samples = samples
        self._others = others  # all terms of each rank's loss
        self._batch = batch
        self.found = self._find()
        self.doubts = [*self._find_doubts()]

    def _find(self) -> _Scale | None:
        scales = _find_scales(self._terms[0])
        divisors = [scale for scale in scales if scale.name == "divisors"]
        computed = [scale for scale in divisors if self._terms[0].scales.computed[scale.index]]
        for suits, candidates in (
            (self._counts_samples, scales),
            (self._varies, scales),
            (self._counts_inputs, divisors),
            (lambda scale: True, computed),
            (self._may_count, reversed(divisors)),
        ):
            for scale in candidates:
                if suits(scale):
                    return scale
        return None

    def _find_doubts(self) -> list[str]:
        if self.found is None:
            divisors = self._terms[0].scales.divisors
            return [_CONSTANT] if any(one > 1 and one.is_integer() and one != self._batch for one in divisors) else []
        values = self._values(self.found)
        if not self._is_sure_of(self.found):
            return [_COUNT]
        return [_LEAST] if not self._counts_samples(self.found) and min(values) == 1 < max(values) else []

    def _is_sure_of(self, scale: _Scale) -> bool:
        if self._varies(scale):
            return all(_is_count(value) for value in self._values(scale))
        if self._counts_samples(scale):
            # A script may multiply by 0.1, or divide by 2, regardless of the number of samples.
            return scale.name == "divisors" and max(self._samples) > 2
        return self._counts_inputs(scale) and not self._is_batch(scale)

    def _values(self, scale: _Scale) -> list[float]:
        return [scale(term) for term in self._terms]

    def _varies(self, scale: _Scale) -> bool:
        return vary(self._values(scale))

    def _counts_samples(self, scale: _Scale) -> bool:
        return max(self._samples) > 1 and _match(self._values(scale), self._samples)

    def _counts_inputs(self, scale: _Scale) -> bool:
        """Return whether this is the number of summed rows or elements, or the count of another term."""
        values = self._values(scale)
        rows = [term.sizes[0] if term.sizes else 0 for term in self._terms]
        counted = ([one.amount for one in terms if one.kind is ReductionKind.COUNTED] for terms in self._others)
        return max(values) > 1 and (
            _match(values, rows)
            or _match(values, [term.elements for term in self._terms])
            or any(_match(values, amounts) for amounts in zip(*counted, strict=True))
        )

    def _may_count(self, scale: _Scale) -> bool:
        # The number of accumulation steps is smaller than the number of samples; that of targets or elements is not.
        return scale(self._terms[0]) >= max(self._samples) and not self._is_batch(scale)

    def _is_batch(self, scale: _Scale) -> bool:
        return scale(self._terms[0]) == self._batch


def _find_scales(term: Term) -> list[_Scale]:
    return [_Scale(name, index) for name in ("divisors", "factors") for index in range(len(getattr(term.scales, name)))]


def _is_count(value: float) -> bool:
    return math.isfinite(value) and math.isclose(value, round(value), rel_tol=MATCHING)


def _match(values: Sequence[float], counts: Sequence[float]) -> bool:
    return all(math.isclose(value, count, rel_tol=MATCHING) for value, count in zip(values, counts, strict=True))


@dataclass(frozen=True)
class _Scale:
    """The position of one number by which a term is divided, or by whose inverse it is multiplied."""

    name: str
    index: int

    def __call__(self, term: Term) -> float:
        return float(getattr(term.scales, self.name)[self.index])
