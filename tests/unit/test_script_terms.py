"""The terms of a loss, read from its graph, against what one process computes of the parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from undertow.script.losses import Kind, Term
from undertow.script.terms import find_terms

F = nn.functional
WEIGHT = nn.Parameter(torch.linspace(-1, 1, 12).reshape(4, 3))
INPUTS = torch.linspace(-2, 2, 20).reshape(5, 4)
TARGETS = torch.tensor([0, 1, -100, 2, -100])
CLASSES = torch.tensor([0.5, 1.0, 4.0])


def outputs() -> torch.Tensor:
    return INPUTS @ WEIGHT


def kinds(loss: torch.Tensor) -> list[Kind]:
    return [found.term.kind for found in find_terms([loss])]


def only(loss: torch.Tensor) -> Term:
    [found] = find_terms([loss])
    return found.term


def test_a_mean_over_targets_says_what_it_has_counted() -> None:
    assert only(F.cross_entropy(outputs(), TARGETS)) == Term(Kind.COUNTED, 5, amount=3.0)
    assert only(nn.CrossEntropyLoss(CLASSES)(outputs(), TARGETS)) == Term(Kind.COUNTED, 5, amount=5.5)


REDUCED: list[Callable[..., torch.Tensor]] = [
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy_with_logits,
    F.poisson_nll_loss,
    F.hinge_embedding_loss,
    F.soft_margin_loss,
    lambda o, y, reduction: F.binary_cross_entropy(o.sigmoid(), y, reduction=reduction),
    lambda o, y, reduction: F.gaussian_nll_loss(o, y, torch.ones_like(o), reduction=reduction),
]


@pytest.mark.parametrize("loss", REDUCED)
def test_every_loss_says_whether_it_is_a_mean_or_a_sum(loss: Callable[..., torch.Tensor]) -> None:
    target = torch.full((5, 3), 0.5)
    assert only(loss(outputs(), target, reduction="mean")) == Term(Kind.MEAN, 15)
    term = only(loss(outputs(), target, reduction="sum"))
    assert (term.kind, term.elements, term.rows in (0, 5)) == (Kind.SUM, 15, True)


def test_scalings_are_read_and_signs_and_views_passed() -> None:
    loss = -(3 * (outputs().sum() / torch.tensor(7)) / 2).reshape(1, 1).squeeze()
    assert only(loss) == Term(Kind.SUM, 15, 5, 0.0, (2.0, 7.0), (1 / 3,))


def test_terms_come_in_the_order_of_the_script() -> None:
    o = outputs()
    assert kinds(o.mean() + F.cross_entropy(o, TARGETS) - o.exp().sum()) == [Kind.MEAN, Kind.COUNTED, Kind.SUM]


def test_penalties_are_left_out() -> None:
    penalty = WEIGHT.norm() + 0.1 * WEIGHT.pow(2).sum() + WEIGHT.abs().mean()
    assert kinds(F.mse_loss(outputs(), torch.zeros(5, 3)) + penalty) == [Kind.MEAN]


@pytest.mark.parametrize(
    "loss",
    [
        lambda o: o.sum().sqrt(),
        lambda o: torch.stack([o.mean(), o.mean()]).sum(),
        lambda o: o.sum() * o.mean(),
        lambda o: o.norm(dim=0).sum(),
        lambda o: o.logsumexp((0, 1)),
    ],
)
def test_what_is_no_sum_over_the_batch_is_not_taken_for_one(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert kinds(loss(outputs().square())) == [Kind.OTHER]


def test_a_sum_of_means_over_the_batch_is_a_mean() -> None:
    assert only(outputs().square().mean(0).sum()) == Term(Kind.MEAN, 15)


def test_a_term_that_is_scaled_in_two_ways_is_unknown() -> None:
    total = outputs().sum()
    assert kinds(total + total / 5) == [Kind.OTHER]


def test_vectors_and_constants() -> None:
    assert [found.term.kind for found in find_terms([outputs()])] == [Kind.OTHER]
    assert find_terms([torch.tensor(1.0)]) == []
