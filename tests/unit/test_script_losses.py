"""What each rank's part weighs in a loss: reports of ranks in, weights out."""

from __future__ import annotations

from typing import Any

import pytest

from undertow.script.losses import Kind, Report, Term, Verdict, weigh

MEAN = Term(Kind.MEAN, 6)


def total(elements: int, *divisors: float, rows: int = 0, factors: tuple[float, ...] = ()) -> Term:
    return Term(Kind.SUM, elements, rows, 0.0, divisors, factors)


def counted(amount: float) -> Term:
    return Term(Kind.COUNTED, 4, amount=amount)


def ask(*ranks: Any, batch: int | None = None) -> Verdict:
    """Each rank is its samples and its terms."""
    return weigh([Report(samples, tuple(terms)) for samples, *terms in ranks], batch=batch)


def test_a_mean_weighs_by_what_the_loss_has_counted() -> None:
    assert ask((2, counted(1.0)), (2, counted(3.0))).weights == [[0.5, 1.5]]


def test_a_rank_that_counted_nothing_weighs_nothing() -> None:
    assert ask((2, counted(0.0)), (2, counted(3.0))).weights == [[0.0, 2.0]]


def test_where_all_have_counted_nothing_it_is_left_as_it_is() -> None:
    assert ask((2, counted(0.0)), (2, counted(0.0))).weights == [None]


def test_a_rank_without_samples_weighs_nothing_whatever_it_has_computed() -> None:
    assert ask((1, counted(2.0)), (0, counted(2.0))).weights == [[2.0, 0.0]]
    assert ask((1, total(4)), (0,)).weights == [[2.0, 0.0]]


def test_a_sum_is_summed_over_the_ranks() -> None:
    verdict = ask((2, total(8)), (1, total(4)), (1, total(4)))
    assert verdict == Verdict([[3.0, 3.0, 3.0]], [], has_sums=True)


def test_a_mean_over_elements_weighs_by_their_number_if_it_is_over_samples() -> None:
    assert ask((2, Term(Kind.MEAN, 20)), (2, Term(Kind.MEAN, 12))).weights == [[1.25, 0.75]]
    assert ask((2, MEAN), (1, MEAN)).weights == [None]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((3, total(6, 3.0)), (1, total(2, 1.0))),  # len(x)
        ((2, total(6, 6.0)), (2, total(6, 2.0))),  # targets that are not ignored
        ((3, total(6, 2.0, 3.0)), (1, total(2, 2.0, 1.0))),  # accumulation besides
        ((3, total(6, factors=(3.0,))), (1, total(2, factors=(1.0,)))),  # times 1 / len(x)
    ],
)
def test_a_sum_that_the_script_divides_by_what_it_counts_is_a_mean(first: Any, second: Any) -> None:
    assert ask(first, second) == Verdict([[1.5, 0.5]], [])


def test_a_sum_that_is_scaled_by_a_constant_stays_a_sum() -> None:
    for scaled in (total(8, factors=(2.0,)), total(8, 2.0), total(8, 8.0)):
        assert ask((4, scaled), (4, scaled), batch=8) == Verdict([[2.0, 2.0]], [], has_sums=True)


def test_a_divisor_that_may_be_either_is_told() -> None:
    verdict = ask((4, total(12, 100.0)), (4, total(12, 100.0)))
    assert verdict.weights == [[1.0, 1.0]]
    assert verdict.doubts == ["a sum that is divided by 100 is taken for a mean over each rank's part of the batch"]


def test_a_sum_of_the_scripts_own_must_have_a_row_for_each_sample() -> None:
    assert ask((2, total(8, rows=2)), (1, total(4, rows=1))).weights == [[2.0, 2.0]]
    verdict = ask((2, total(3, rows=3)), (1, total(3, rows=3)))
    assert verdict.weights == [None]
    assert "not known to be a sum or a mean over the batch" in verdict.doubts[0]


def test_or_as_many_elements_as_a_sum_of_torchs() -> None:
    """Flattened sequences: the two parts of a smoothed cross entropy."""
    verdict = ask((2, total(8), total(8, rows=8)), (1, total(4), total(4, rows=4)))
    assert verdict == Verdict([[2.0, 2.0]] * 2, [], has_sums=True)


def test_beside_a_term_that_is_not_known_sums_gain_nothing_on_it() -> None:
    verdict = ask((3, total(8), counted(3.0), Term(Kind.OTHER)), (3, total(8), counted(1.0), Term(Kind.OTHER)))
    assert verdict.weights == [None, [1.5, 0.5], None]
    assert len(verdict.doubts) == 1
    assert not verdict.has_sums


def test_losses_that_differ_between_ranks_weigh_by_samples() -> None:
    verdict = ask((2, counted(1.0)), (2, MEAN))
    assert verdict.weights == [None]
    assert "in different ways" in verdict.doubts[0]


def test_a_loss_that_is_computed_sample_by_sample_weighs_by_samples() -> None:
    verdict = ask((2, counted(1.0), counted(3.0)), (2, counted(2.0), counted(5.0)))
    assert verdict.weights == [None, None]
    assert "sample by sample" in verdict.doubts[0]
    assert ask((2, counted(1.0), MEAN), (2, counted(3.0), MEAN)).weights == [[0.5, 1.5], [1.0, 1.0]]
