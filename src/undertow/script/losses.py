"""What each rank's part of a batch weighs in a loss, so that averaged gradients are those of the whole batch.

In: the terms that the loss of each rank adds up, and how many samples its part has.  Out: the weight of each term on
each rank, the same decision on all ranks, and in words what could not be known.

A sum over the batch weighs as many times as there are ranks, because gradients are averaged.  A mean weighs as much as
the rank's part of what it is a mean over: targets that are not ignored, their class weights, elements.  A script that
divides a sum makes it a mean: what it divides by is counted in the rank's part only, and adds up over the ranks.
Whatever else a loss is made of weighs by the number of samples.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

MATCHING = 1e-6  # relative; what a script computes in float32 is no closer


class Kind(enum.IntEnum):
    SUM = 0  # of `elements` values
    MEAN = 1  # of `elements` values
    COUNTED = 2  # a mean over `amount`, which the loss function has counted itself
    OTHER = 3  # not known to be any of these


class Term(msgspec.Struct, frozen=True):
    """One term of the loss of one rank."""

    kind: Kind
    elements: int = 0
    rows: int = 0  # length of the first dimension of what is summed; 0: it is known to be over the batch
    amount: float = 0.0
    divisors: tuple[float, ...] = ()  # by which the script divides it, the last division first
    factors: tuple[float, ...] = ()  # with which the script multiplies it, inverted


class Report(msgspec.Struct, frozen=True):
    """The loss of one rank.  A rank without samples of its own has 0 of them, and counts for nothing."""

    samples: int
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Verdict:
    """`weights[term][rank]` is None for terms that weigh by the number of samples."""

    weights: list[list[float] | None]
    doubts: list[str]
    has_sums: bool = False


def weigh(reports: Sequence[Report], *, batch: int | None) -> Verdict:
    """Decide about all terms.  `batch` is the size of the batches that are split, if they are."""
    terms = len(reports[0].terms)
    counting = [report for report in reports if report.samples]
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
    forms = {tuple((term.kind, len(term.divisors), len(term.factors)) for term in report.terms) for report in counting}
    if len(forms) > 1:
        return "the ranks add up their losses in different ways: they are weighed by the number of samples"
    samples = {report.samples for report in counting}
    if len(samples) == 1 and _repeats(*forms, times=samples.pop()):
        return (
            "the loss has as many terms as there are samples, or a multiple: it is taken for one that is computed "
            "sample by sample, and weighed by their number"
        )
    return ""


def _repeats(form: tuple[object, ...], *, times: int) -> bool:
    """Whether it is the same over and over again."""
    return times > 1 and len(form) > 0 and form == form[: len(form) // times] * times


class _Column:
    """One term on all ranks."""

    def __init__(self, reports: Sequence[Report], counting: Sequence[Report], index: int, batch: int | None) -> None:
        # A rank that counts for nothing may lack the term.
        self._all = [report.terms[index] if report.samples else None for report in reports]
        self._terms = [report.terms[index] for report in counting]
        self._samples = [report.samples for report in counting]
        self._batch = batch
        self._siblings = [
            {term.elements for term in report.terms if term.kind in (Kind.SUM, Kind.COUNTED) and not term.rows}
            for report in counting
        ]
        self._divisor = self._find_divisor()

    @property
    def is_unknown(self) -> bool:
        kind = self._terms[0].kind
        return kind is Kind.OTHER or (self._is_undivided_sum and not self._is_over_batch)

    @property
    def is_plain_sum(self) -> bool:
        return self._is_undivided_sum and self._is_over_batch

    def weigh(self, doubt: Callable[[str], None]) -> list[float] | None:
        match self._terms[0].kind:
            case Kind.COUNTED:
                return self._share(lambda term: term.amount)
            case Kind.MEAN if _vary(self._samples) and not _vary([term.elements for term in self._terms]):
                return None  # it is not over the samples
            case Kind.MEAN:
                return self._share(lambda term: term.elements)
            case Kind.SUM if self._divisor is not None:
                if not self._is_sure_of(self._divisor):
                    doubt(
                        f"a sum that is divided by {self._divisor(self._terms[0]):g} is taken for a mean over each "
                        "rank's part of the batch"
                    )
                return self._share(self._divisor)
            case Kind.SUM if self._is_over_batch:
                return [float(len(self._all)) if term else 0.0 for term in self._all]
        return None

    @property
    def _is_undivided_sum(self) -> bool:
        return self._terms[0].kind is Kind.SUM and self._divisor is None

    @property
    def _is_over_batch(self) -> bool:
        return all(
            not term.rows or term.rows == samples or term.elements in known
            for term, samples, known in zip(self._terms, self._samples, self._siblings, strict=True)
        )

    def _share(self, amount: Callable[[Term], float]) -> list[float] | None:
        amounts = [abs(amount(term)) if term else 0.0 for term in self._all]
        total = sum(amounts)
        if not total or not math.isfinite(total):
            return None  # as one process has it: 0 / 0
        return [len(amounts) * own / total for own in amounts]

    def _find_divisor(self) -> Callable[[Term], float] | None:
        """What makes this sum a mean, if anything does."""
        first = self._terms[0]
        if first.kind is not Kind.SUM:
            return None
        divisors = [_Scale("divisors", place) for place in range(len(first.divisors))]
        factors = [_Scale("factors", place) for place in range(len(first.factors))]
        for scale in (*divisors, *factors):
            if self._counts_samples(scale):
                return scale
        for scale in divisors:
            if _vary([scale(term) for term in self._terms]):
                return scale
        # The number of some steps that are accumulated is smaller, that of targets or elements is not.
        counts = [scale for scale in divisors if scale(first) >= max(self._samples) and scale(first) != self._batch]
        return counts[-1] if counts else None

    def _counts_samples(self, scale: Callable[[Term], float]) -> bool:
        pairs = zip(self._terms, self._samples, strict=True)
        return max(self._samples) > 1 and all(
            math.isclose(scale(term), samples, rel_tol=MATCHING) for term, samples in pairs
        )

    def _is_sure_of(self, scale: Callable[[Term], float]) -> bool:
        return (
            self._counts_samples(scale)
            or _vary([scale(term) for term in self._terms])
            or all(scale(term) == term.elements for term in self._terms)
        )


@dataclass(frozen=True)
class _Scale:
    """One of the numbers that a term is divided by."""

    name: str
    place: int

    def __call__(self, term: Term) -> float:
        return float(getattr(term, self.name)[self.place])


def _vary(values: Sequence[float]) -> bool:
    return any(not math.isclose(value, values[0], rel_tol=MATCHING) for value in values)
