"""The weights of each rank's terms in a loss, from the ranks' reports."""

from __future__ import annotations

import math
from typing import Any

import pytest

from undertow.sync.batches.losses import LossWeights, weigh
from undertow.sync.batches.reports import Reduction, ReductionKind, Report, Term, TermScales

MEAN = Term(ReductionKind.MEAN, 6)


def total(elements: int, *divisors: float, rows: int = 0, factors: tuple[float, ...] = ()) -> Term:
    """Return the term of one of torch's sums, or of the script's own if `rows` is given."""
    scales = TermScales(divisors, factors, (False,) * len(divisors))
    return Term(ReductionKind.SUM, elements, (rows,) if rows else (), 0.0, scales, is_loss=not rows)


def counted(amount: float) -> Term:
    return Term(ReductionKind.COUNTED, 4, amount=amount)


def ask(*ranks: Any, batch: int | None = None) -> LossWeights:
    """Weigh the terms; each rank is given by its samples and its terms."""
    return weigh([Report(samples, tuple(terms)) for samples, *terms in ranks], batch=batch)


def test_a_mean_is_weighted_by_the_count_of_its_loss() -> None:
    assert ask((2, counted(1.0)), (2, counted(3.0))).weights == [[0.5, 1.5]]


def test_a_rank_that_counted_nothing_has_weight_0() -> None:
    assert ask((2, counted(0.0)), (2, counted(3.0))).weights == [[0.0, 2.0]]


def test_if_no_rank_counted_anything_the_term_is_unchanged() -> None:
    assert ask((2, counted(0.0)), (2, counted(0.0))).weights == [None]


def test_a_rank_without_samples_has_weight_0_whatever_it_computed() -> None:
    assert ask((1, counted(2.0)), (0, counted(2.0))).weights == [[2.0, 0.0]]
    assert ask((1, total(4)), (0,)).weights == [[2.0, 0.0]]


def test_a_sum_is_summed_over_the_ranks() -> None:
    decided = ask((2, total(8)), (1, total(4)), (1, total(4)))
    assert decided == LossWeights([[3.0, 3.0, 3.0]], [], has_sums=True)


def test_a_mean_over_elements_of_samples_is_weighted_by_their_number() -> None:
    assert ask((2, Term(ReductionKind.MEAN, 20)), (2, Term(ReductionKind.MEAN, 12))).weights == [[1.25, 0.75]]
    assert ask((2, MEAN), (1, MEAN)).weights == [None]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((3, total(6, 3.0)), (1, total(2, 1.0))),  # len(x)
        ((2, total(6, 6.0)), (2, total(6, 2.0))),  # targets that are not ignored
        ((3, total(6, 2.0, 3.0)), (1, total(2, 2.0, 1.0))),  # with accumulation steps
        ((3, total(6, factors=(3.0,))), (1, total(2, factors=(1.0,)))),  # times 1 / len(x)
    ],
)
def test_a_sum_that_the_script_divides_by_what_it_counts_is_a_mean(first: Any, second: Any) -> None:
    assert ask(first, second) == LossWeights([[1.5, 0.5]], [])


def test_a_sum_that_is_scaled_by_a_constant_stays_a_sum() -> None:
    for scaled in (total(8, factors=(2.0,)), total(8, 0.07), total(32, 8.0)):
        assert ask((4, scaled), (4, scaled), batch=8) == LossWeights([[2.0, 2.0]], [], has_sums=True)


def test_an_ambiguous_divisor_causes_a_warning() -> None:
    decided = ask((4, total(12, 100.0)), (4, total(12, 100.0)))
    assert decided.weights == [[1.0, 1.0]]
    assert "taken for a mean: the number may be a count" in decided.doubts[0]
    decided = ask((4, total(12, 2.0)), (4, total(12, 2.0)))
    assert decided.weights == [[2.0, 2.0]]
    assert "taken for a sum over the batch" in decided.doubts[0]


def test_a_factor_that_happens_to_be_the_inverse_of_the_count_causes_a_warning() -> None:
    decided = ask((10, total(30, factors=(10.0,))), (10, total(30, factors=(10.0,))))
    assert "taken for a mean: the number may be a count" in decided.doubts[0]


def test_a_tensor_divisor_of_a_sum_is_a_count() -> None:
    """The ranks happen to have the same number of targets, which is less than the samples."""
    term = Term(ReductionKind.SUM, 4, (4,), scales=TermScales((2.0,), (), (True,)))
    assert ask((4, term), (4, term)).weights == [[1.0, 1.0]]


def test_a_divisor_that_counts_the_summed_elements_is_certain() -> None:
    rows = total(12, 3.0, rows=3)
    assert ask((6, rows), (6, rows)) == LossWeights([[1.0, 1.0]], [])  # a share that is computed in two parts
    smoothed = total(12, 3.0, rows=12)
    assert ask((4, smoothed, counted(3.0)), (4, smoothed, counted(3.0))) == LossWeights([[1.0, 1.0]] * 2, [])


def test_a_count_of_1_that_may_stand_for_0_causes_a_warning() -> None:
    decided = ask((4, total(8, 5.0)), (4, total(8, 1.0)))
    assert "if the 1 stands for a count of 0" in decided.doubts[0]


@pytest.mark.parametrize("number", [math.inf, math.nan, 0.0])
def test_a_scale_that_is_not_finite_on_one_rank_causes_a_warning(number: float) -> None:
    """As with a factor of 0, or a division by the mean of nothing."""
    decided = ask((4, total(8, factors=(number,))), (4, total(8, factors=(1.5,))))
    assert "taken for a mean" in decided.doubts[0]


@pytest.mark.parametrize("factors", [(0.2, 0.3), (0.25, 0.25), (1 / 3, 1 / 3)])
def test_a_mean_multiplied_by_a_count_is_unknown(factors: tuple[float, float]) -> None:
    """A count that differs between ranks, that of samples, or that of targets."""
    terms = [Term(ReductionKind.COUNTED, 6, (6,), 3.0, TermScales((), (factor,))) for factor in factors]
    decided = ask((4, terms[0]), (4, terms[1]))
    assert decided.weights == [None]
    assert "not known" in decided.doubts[0]


def nested(kind: ReductionKind, sizes: tuple[int, ...], *stages: Reduction) -> Term:
    return Term(kind, math.prod(sizes), sizes, reductions=stages)


def test_of_two_reductions_the_one_over_the_batch_counts() -> None:
    below = Reduction(ReductionKind.SUM, (4,), is_first=True, elements=12)
    for term, weights in (
        (nested(ReductionKind.MEAN, (3,), below), [1.0, 1.0]),  # (time, batch).sum(0).mean(), of 3 samples
        (nested(ReductionKind.MEAN, (5,), below), [2.0, 2.0]),  # (batch, features).sum(0).mean(), of 4
    ):
        samples = 3 if term.sizes == (3,) else 4
        assert ask((samples, term), (samples, term)) == LossWeights([weights], [], has_sums=weights == [2.0, 2.0])


def test_an_ambiguous_reduction_is_unknown() -> None:
    square = nested(ReductionKind.MEAN, (4,), Reduction(ReductionKind.SUM, (4,), is_first=True, elements=16))
    flat = nested(ReductionKind.MEAN, (12,), Reduction(ReductionKind.SUM, (3,), elements=36))
    for samples, term in ((4, square), (3, flat)):
        decided = ask((samples, term), (samples, term))
        assert decided.weights == [None]
        assert "not known" in decided.doubts[0]


def test_the_scripts_own_sum_must_have_a_row_per_sample() -> None:
    assert ask((2, total(8, rows=2)), (1, total(4, rows=1))).weights == [[2.0, 2.0]]
    decided = ask((2, total(3, rows=3)), (1, total(3, rows=3)))
    assert decided.weights == [None]
    assert "not known to be a sum or a mean over the batch" in decided.doubts[0]


def test_or_the_same_number_of_elements_as_one_of_torchs_sums() -> None:
    """Flattened sequences: the two parts of a smoothed cross entropy."""
    decided = ask((2, total(8), total(8, rows=8)), (1, total(4), total(4, rows=4)))
    assert decided == LossWeights([[2.0, 2.0]] * 2, [], has_sums=True)


def test_sums_do_not_outweigh_an_unknown_term() -> None:
    decided = ask(
        (3, total(8), counted(3.0), Term(ReductionKind.OTHER)), (3, total(8), counted(1.0), Term(ReductionKind.OTHER))
    )
    assert decided.weights == [None, [1.5, 0.5], None]
    assert len(decided.doubts) == 1
    assert not decided.has_sums


def test_losses_that_differ_between_ranks_are_weighted_by_samples() -> None:
    decided = ask((2, counted(1.0)), (2, MEAN))
    assert decided.weights == [None]
    assert "have different terms" in decided.doubts[0]


def test_a_loss_computed_sample_by_sample_is_weighted_by_samples() -> None:
    decided = ask((2, counted(1.0), counted(3.0)), (2, counted(2.0), counted(5.0)))
    assert decided.weights == [None, None]
    assert "sample by sample" in decided.doubts[0]
    assert ask((2, counted(1.0), MEAN), (2, counted(3.0), MEAN)).weights == [[0.5, 1.5], [1.0, 1.0]]
