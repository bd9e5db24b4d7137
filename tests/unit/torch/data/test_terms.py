"""The terms of a loss, as read from its graph."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import nn

from undertow.sync.batches.reports import Reduction, ReductionKind, Report, Term, TermScales
from undertow.torch.data.terms import find_terms

F = nn.functional
WEIGHT = nn.Parameter(torch.linspace(-1, 1, 12).reshape(4, 3))
INPUTS = torch.linspace(-2, 2, 20).reshape(5, 4)
TARGETS = torch.tensor([0, 1, -100, 2, -100])
CLASSES = torch.tensor([0.5, 1.0, 4.0])


def outputs() -> torch.Tensor:
    return INPUTS @ WEIGHT


def kinds(loss: torch.Tensor) -> list[ReductionKind]:
    return [found.term.kind for found in find_terms([loss])]


def only(loss: torch.Tensor) -> Term:
    [found] = find_terms([loss])
    return found.term


def test_a_mean_over_targets_reports_its_count() -> None:
    for loss, amount in (F.cross_entropy, 3.0), (nn.CrossEntropyLoss(CLASSES), 5.5):
        assert only(loss(outputs(), TARGETS)) == Term(ReductionKind.COUNTED, 5, (5,), amount, is_loss=True)


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
def test_every_loss_is_recognised_as_mean_or_sum(loss: Callable[..., torch.Tensor]) -> None:
    target = torch.full((5, 3), 0.5)
    for reduction, kind in ("mean", ReductionKind.MEAN), ("sum", ReductionKind.SUM):
        term = only(loss(outputs(), target, reduction=reduction))
        assert (term.kind, term.elements, term.sizes) == (kind, 15, (5, 3))


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (torch.sum, Term(ReductionKind.OTHER)),
        (torch.mean, Term(ReductionKind.OTHER)),
        (
            lambda o: o.sum(1).mean(),
            Term(ReductionKind.MEAN, 6, (2, 3), reductions=(Reduction(ReductionKind.OTHER, ()),)),
        ),
        (lambda o: o.amax(-1).sum(), Term(ReductionKind.OTHER)),
        (lambda o: o.values().mean(), Term(ReductionKind.MEAN, 18, (6, 3))),
    ],
)
def test_sizes_of_nested_tensors_are_unknown(loss: Callable[..., torch.Tensor], expected: Term) -> None:
    rows = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(4, 4)], layout=torch.jagged)
    found = only(loss(F.linear(rows, WEIGHT.T)))
    assert found == expected
    assert msgspec.msgpack.encode(Report(2, (found,)))


def test_scalings_are_read_through_signs_and_views() -> None:
    loss = -(3 * (outputs().sum() / torch.tensor(7)) / 2).reshape(1, 1).squeeze()
    assert only(loss) == Term(ReductionKind.SUM, 15, (5, 3), scales=TermScales((2.0, 7.0), (1 / 3,), (False, True)))


def test_terms_come_in_the_order_of_the_script() -> None:
    o = outputs()
    assert kinds(o.mean() + F.cross_entropy(o, TARGETS) - o.exp().sum()) == [
        ReductionKind.MEAN,
        ReductionKind.COUNTED,
        ReductionKind.SUM,
    ]


def test_penalties_are_left_out() -> None:
    penalty = WEIGHT.norm() + 0.1 * WEIGHT.pow(2).sum() + WEIGHT.abs().mean()
    penalty += (WEIGHT.T @ WEIGHT - torch.eye(3)).pow(2).sum()
    penalty += F.mse_loss(WEIGHT, torch.ones(4, 3), reduction="sum") + torch.dot(WEIGHT.flatten(), WEIGHT.flatten())
    assert kinds(F.mse_loss(outputs(), torch.zeros(5, 3)) + penalty) == [ReductionKind.MEAN]


def test_a_term_with_data_is_not_a_penalty() -> None:
    mean = WEIGHT[0]
    assert kinds((mean - torch.ones(5, 3)).pow(2).sum()) == [ReductionKind.SUM]
    assert kinds(F.mse_loss(mean.expand(5, 3), torch.ones(5, 3), reduction="sum")) == [ReductionKind.SUM]
    assert kinds(WEIGHT[torch.tensor([0, 1, 1])].sum()) == [ReductionKind.SUM]


@pytest.mark.parametrize(
    "loss", [lambda o: o.sum().sqrt(), lambda o: o.sum() * o.mean(), lambda o: o.logsumexp((0, 1))]
)
def test_other_reductions_are_not_taken_for_sums_over_the_batch(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert kinds(loss(outputs().square())) == [ReductionKind.OTHER]


@pytest.mark.parametrize(
    ("loss", "stage"),
    [
        (lambda o: o.mean(0).sum(), Reduction(ReductionKind.MEAN, (5,), is_first=True, elements=15)),
        (lambda o: o.sum(0).mean(), Reduction(ReductionKind.SUM, (5,), is_first=True, elements=15)),
        (lambda o: o.sum(-1).mean(), Reduction(ReductionKind.SUM, (3,), elements=15)),
        (lambda o: o.unsqueeze(1).sum(-1).mean(), Reduction(ReductionKind.SUM, (3,), elements=15)),
        (lambda o: o.mean(0).square().sum(), Reduction(ReductionKind.OTHER, (5,), is_first=True, elements=15)),
        (
            lambda o: F.mse_loss(o.mean(0), torch.ones(3)),
            Reduction(ReductionKind.OTHER, (5,), is_first=True, elements=15),
        ),
        (lambda o: (o - o.mean(0)).sum(), Reduction(ReductionKind.OTHER, (5,), is_first=True, elements=15)),
        (lambda o: o.std(0).mean(), Reduction(ReductionKind.OTHER, (5,), is_first=True, elements=15)),
        (lambda o: o.amax(0).mean(), Reduction(ReductionKind.OTHER, (5,), is_first=True, elements=15)),
        (
            lambda o: o.flatten().topk(2).values.mean(),
            Reduction(ReductionKind.OTHER, (15,), is_first=True, elements=15),
        ),
        (lambda o: F.cross_entropy(o @ o.T, torch.arange(5)), Reduction(ReductionKind.OTHER, (), is_first=True)),
    ],
)
def test_reductions_below_a_reduction_are_listed(
    loss: Callable[[torch.Tensor], torch.Tensor], stage: Reduction
) -> None:
    assert only(loss(outputs())).reductions == (stage,)


def test_reduced_or_stacked_losses_are_separate_terms() -> None:
    o = outputs()
    known = F.cross_entropy(o, TARGETS)
    assert kinds(known.mean()) == kinds(known.sum()) == [ReductionKind.COUNTED]
    assert kinds(torch.stack([known, o.mean()]).mean()) == [ReductionKind.COUNTED, ReductionKind.MEAN]


def test_a_term_with_two_different_scales_is_unknown() -> None:
    total = outputs().sum()
    assert kinds(total + total / 5) == [ReductionKind.OTHER]


def test_vectors_and_constants() -> None:
    assert [found.term.kind for found in find_terms([outputs()])] == [ReductionKind.OTHER]
    assert find_terms([torch.tensor(1.0)]) == []
