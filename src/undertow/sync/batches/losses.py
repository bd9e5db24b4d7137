"""Weighs the terms of the ranks' losses, so that averaged gradients are those of the whole batch.

In: the terms that each rank's loss adds up, and the number of samples in its share.  Out: the weight of each term on
each rank, decided identically on all ranks, and warnings about uncertain cases.

The weight of a sum over the batch is the number of ranks, because gradients are averaged.  The weight of a mean is
proportional to the rank's share of what it averages: targets that are not ignored, their class weights, elements.  A
script that divides a sum makes it a mean: the divisor counts the rank's share only, and adds up over the ranks.  Every
other term is weighted by the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from undertow.sync.batches.divisors import SumDivisors, is_scaled_by_data
from undertow.sync.batches.reports import Reduction, ReductionKind, Report, Term, vary


@dataclass(frozen=True)
class LossWeights:
    """The weights of all terms: `weights[term][rank]`, or None for a term weighted by the number of samples."""

    weights: list[list[float] | None]
    doubts: list[str]
    has_sums: bool = False


def weigh(reports: Sequence[Report], *, batch: int | None) -> LossWeights:
    """Return the weights of all terms.  `batch` is the batch size if batches are split."""
    counting = [report for report in reports if report.samples]
    terms = len((counting or reports)[0].terms)  # a rank with weight 0 may have other terms
    doubt = _find_doubt(counting)
    if doubt or not counting:
        return LossWeights([None] * terms, [doubt] if doubt else [])
    doubts: list[str] = []
    ranked = [_RankedTerm(reports, counting, index, batch) for index in range(terms)]
    weights = [one.weigh(doubts.append) for one in ranked]
    if any(one.is_unknown for one in ranked):
        doubts.append(
            "a term of the loss is not known to be a sum or a mean over the batch: it is weighted by the number of "
            "samples, which is exact for a mean over the samples"
        )
        # Treat all sums alike: otherwise known sums would outweigh unknown terms that may also be sums.
        weights = [None if one.is_batch_sum else weight for one, weight in zip(ranked, weights, strict=True)]
        return LossWeights(weights, doubts)
    return LossWeights(weights, doubts, has_sums=any(one.is_batch_sum for one in ranked))


def _find_doubt(counting: Sequence[Report]) -> str:
    """Return why the terms cannot be weighed; empty if they can."""
    forms = {tuple(_form(term) for term in report.terms) for report in counting}
    if len(forms) > 1:
        return "the losses of the ranks have different terms: they are weighted by the number of samples"
    samples = {report.samples for report in counting}
    if len(samples) == 1 and _repeats(*forms, times=samples.pop()):
        return (
            "the number of terms in the loss is a multiple of the number of samples: the loss is assumed to be "
            "computed sample by sample, and is weighted by the number of samples"
        )
    return ""


def _form(term: Term) -> tuple[object, ...]:
    reductions = tuple((one.kind, one.is_first, len(one.sizes)) for one in term.reductions)
    return term.kind, len(term.sizes), len(term.scales.divisors), len(term.scales.factors), reductions


def _repeats(form: tuple[object, ...], *, times: int) -> bool:
    """Return whether the form consists of this many equal runs."""
    return times > 1 and len(form) > 0 and form == form[: len(form) // times] * times


_OUTER = -1  # the index of the term's own reduction


def _find_batch(terms: Sequence[Term], samples: Sequence[int]) -> list[int]:
    """Return the indices of the reductions over the batch, as far as they can be recognised.

    These are the reductions over a dimension as long as the share on every rank, and the one over the first dimension,
    if a batch may have been flattened into it, or if there is no other.
    """
    pairs = list(zip(terms, samples, strict=True))
    inner = range(len(terms[0].reductions))
    first = [index for index in inner if terms[0].reductions[index].is_first] or [_OUTER]
    exact = [i for i in (_OUTER, *inner) if all(count in _reduction_at(term, i).sizes for term, count in pairs)]
    flat = [i for i in first if all(_has_rows(_reduction_at(term, i).sizes, count) for term, count in pairs)]
    return [*dict.fromkeys([*exact, *flat])] or first


def _has_rows(sizes: tuple[int, ...], samples: int) -> bool:
    return not sizes or sizes[0] % samples == 0


def _reduction_at(term: Term, index: int) -> Term | Reduction:
    return term if index == _OUTER else term.reductions[index]


def _kind_at(term: Term, indices: Sequence[int]) -> ReductionKind:
    kinds = {_reduction_at(term, index).kind for index in indices}
    return kinds.pop() if len(kinds) == 1 else ReductionKind.OTHER


class _RankedTerm:
    """A term on all ranks."""

    def __init__(self, reports: Sequence[Report], counting: Sequence[Report], index: int, batch: int | None) -> None:
        # A rank with weight 0 may lack the term.
        self._all = [report.terms[index] if report.samples else None for report in reports]
        self._terms = [report.terms[index] for report in counting]
        self._samples = [report.samples for report in counting]
        self._others = [report.terms for report in counting]
        self._batch_reductions = _find_batch(self._terms, self._samples)
        self._kind = _kind_at(self._terms[0], self._batch_reductions)
        self._divisor = (
            SumDivisors(self._terms, self._samples, self._others, batch) if self._kind is ReductionKind.SUM else None
        )

    @property
    def is_unknown(self) -> bool:
        if self._kind is ReductionKind.SUM:
            return self._is_undivided_sum and not self._is_over_batch
        return self._kind is ReductionKind.OTHER or is_scaled_by_data(self._terms, self._samples)

    @property
    def is_batch_sum(self) -> bool:
        return self._is_undivided_sum and self._is_over_batch

    def weigh(self, doubt: Callable[[str], None]) -> list[float] | None:
        if self.is_unknown:
            return None
        match self._kind:
            case ReductionKind.COUNTED:
                return self._share(lambda term: term.amount)
            case ReductionKind.MEAN if vary(self._samples) and not vary([self._count(term) for term in self._terms]):
                return None  # not a mean over the samples
            case ReductionKind.MEAN:
                return self._share(self._count)
        assert self._divisor is not None
        for warning in self._divisor.doubts:
            doubt(warning)
        if self._divisor.found is not None:
            return self._share(self._divisor.found)
        return [float(len(self._all)) if term else 0.0 for term in self._all]

    @property
    def _is_undivided_sum(self) -> bool:
        return self._divisor is not None and self._divisor.found is None

    @property
    def _is_over_batch(self) -> bool:
        return self._terms[0].is_loss or all(
            any(samples in _reduction_at(term, index).sizes for index in self._batch_reductions)
            or term.elements in {one.elements for one in others if one.is_loss}
            for term, samples, others in zip(self._terms, self._samples, self._others, strict=True)
        )

    def _count(self, term: Term) -> int:
        return _reduction_at(term, self._batch_reductions[0]).elements

    def _share(self, amount: Callable[[Term], float]) -> list[float] | None:
        amounts = [abs(amount(term)) if term else 0.0 for term in self._all]
        total = sum(amounts)
        if not total or not math.isfinite(total):
            return None  # 0 / 0, as in one process
        return [len(amounts) * own / total for own in amounts]
