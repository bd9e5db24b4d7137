"""What each rank's part of a batch weighs in a loss, so that averaged gradients are those of the whole batch.

In: the terms that the loss of each rank adds up, and how many samples its part has.  Out: the weight of each term on
each rank, the same decision on all ranks, and in words what could not be known.

A sum over the batch weighs as many times as there are ranks, because gradients are averaged.  A mean weighs as much as
the rank's part of what it is a mean over: targets that are not ignored, their class weights, elements.  A script that
divides a sum makes it a mean: what it divides by is counted in the rank's part only, and adds up over the ranks.
Whatever else a loss is made of weighs by the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from undertow.torch.data.divisors import Divisors, is_scaled_by_data
from undertow.torch.data.reports import Kind, Report, Term, vary


@dataclass(frozen=True)
class Verdict:
    """`weights[term][rank]` is None for terms that weigh by the number of samples."""

    weights: list[list[float] | None]
    doubts: list[str]
    has_sums: bool = False


def weigh(reports: Sequence[Report], *, batch: int | None) -> Verdict:
    """Decide about all terms.  `batch` is the size of the batches that are split, if they are."""
    counting = [report for report in reports if report.samples]
    terms = len((counting or reports)[0].terms)  # one that counts for nothing may have others
    doubt = _find_doubt(counting)
    if doubt or not counting:
        return Verdict([None] * terms, [doubt] if doubt else [])
    doubts: list[str] = []
    columns = [_Column(reports, counting, index, batch) for index in range(terms)]
    weights = [column.weigh(doubts.append) for column in columns]
    if any(column.is_unknown for column in columns):
        doubts.append(
            "a term of the loss is not known to be a sum or a mean over the batch: it is weighed by the number of "
            "samples, which is exact for a mean over the samples"
        )
        # Together or not at all: otherwise sums would gain on terms that may be sums as well.
        weights = [None if column.is_plain_sum else weight for column, weight in zip(columns, weights, strict=True)]
        return Verdict(weights, doubts)
    return Verdict(weights, doubts, has_sums=any(column.is_plain_sum for column in columns))


def _find_doubt(counting: Sequence[Report]) -> str:
    """Why nothing can be said of any term; empty if it can."""
    forms = {tuple(_form(term) for term in report.terms) for report in counting}
    if len(forms) > 1:
        return "the ranks add up their losses in different ways: they are weighed by the number of samples"
    samples = {report.samples for report in counting}
    if len(samples) == 1 and _repeats(*forms, times=samples.pop()):
        return (
            "the loss has as many terms as there are samples, or a multiple: it is taken for one that is computed "
            "sample by sample, and weighed by their number"
        )
    return ""


def _form(term: Term) -> tuple[object, ...]:
    stages = tuple((stage.kind, stage.is_first, len(stage.sizes)) for stage in term.stages)
    return term.kind, len(term.sizes), len(term.scales.divisors), len(term.scales.factors), stages


def _repeats(form: tuple[object, ...], *, times: int) -> bool:
    """Whether it is the same over and over again."""
    return times > 1 and len(form) > 0 and form == form[: len(form) // times] * times


_OUTER = -1  # in place of a stage: the reduction that the term itself is


def _find_batch(terms: Sequence[Term], samples: Sequence[int]) -> list[int]:
    """The places of the stages that go over the batch, as far as that can be seen.

    Those that go over a dimension as long as the part is, on every rank; and the one that goes over the first
    dimension, if a batch may have been flattened there, or if there is no other.
    """
    pairs = list(zip(terms, samples, strict=True))
    inner = range(len(terms[0].stages))
    first = [place for place in inner if terms[0].stages[place].is_first] or [_OUTER]
    exact = [place for place in (_OUTER, *inner) if all(count in _sizes_at(term, place) for term, count in pairs)]
    flat = [place for place in first if all(_has_rows(_sizes_at(term, place), count) for term, count in pairs)]
    return [*dict.fromkeys([*exact, *flat])] or first


def _has_rows(sizes: tuple[int, ...], samples: int) -> bool:
    return not sizes or sizes[0] % samples == 0


def _sizes_at(term: Term, place: int) -> tuple[int, ...]:
    return term.sizes if place == _OUTER else term.stages[place].sizes


def _kind_at(term: Term, places: Sequence[int]) -> Kind:
    kinds = {term.kind if place == _OUTER else term.stages[place].kind for place in places}
    return kinds.pop() if len(kinds) == 1 else Kind.OTHER


class _Column:
    """One term on all ranks."""

    def __init__(self, reports: Sequence[Report], counting: Sequence[Report], index: int, batch: int | None) -> None:
        # A rank that counts for nothing may lack the term.
        self._all = [report.terms[index] if report.samples else None for report in reports]
        self._terms = [report.terms[index] for report in counting]
        self._samples = [report.samples for report in counting]
        self._others = [report.terms for report in counting]
        self._places = _find_batch(self._terms, self._samples)
        self._kind = _kind_at(self._terms[0], self._places)
        self._divisor = Divisors(self._terms, self._samples, self._others, batch) if self._kind is Kind.SUM else None

    @property
    def is_unknown(self) -> bool:
        if self._kind is Kind.SUM:
            return self._is_undivided_sum and not self._is_over_batch
        return self._kind is Kind.OTHER or is_scaled_by_data(self._terms, self._samples)

    @property
    def is_plain_sum(self) -> bool:
        return self._is_undivided_sum and self._is_over_batch

    def weigh(self, doubt: Callable[[str], None]) -> list[float] | None:
        if self.is_unknown:
            return None
        match self._kind:
            case Kind.COUNTED:
                return self._share(lambda term: term.amount)
            case Kind.MEAN if vary(self._samples) and not vary([self._count(term) for term in self._terms]):
                return None  # it is not over the samples
            case Kind.MEAN:
                return self._share(self._count)
        assert self._divisor is not None
        for words in self._divisor.doubts:
            doubt(words)
        if self._divisor.found is not None:
            return self._share(self._divisor.found)
        return [float(len(self._all)) if term else 0.0 for term in self._all]

    @property
    def _is_undivided_sum(self) -> bool:
        return self._divisor is not None and self._divisor.found is None

    @property
    def _is_over_batch(self) -> bool:
        return self._terms[0].is_loss or all(
            any(samples in _sizes_at(term, place) for place in self._places)
            or term.elements in {one.elements for one in others if one.is_loss}
            for term, samples, others in zip(self._terms, self._samples, self._others, strict=True)
        )

    def _count(self, term: Term) -> int:
        place = self._places[0]
        return term.elements if place == _OUTER else term.stages[place].elements

    def _share(self, amount: Callable[[Term], float]) -> list[float] | None:
        amounts = [abs(amount(term)) if term else 0.0 for term in self._all]
        total = sum(amounts)
        if not total or not math.isfinite(total):
            return None  # as one process has it: 0 / 0
        return [len(amounts) * own / total for own in amounts]
