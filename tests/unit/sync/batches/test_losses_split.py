"""Losses of many kinds on shares of a batch have the gradients of the whole batch, or cause a warning."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from undertow.sync.batches.losses import weigh
from undertow.sync.batches.reports import Report
from undertow.sync.batches.shares import cut_evenly
from undertow.torch.data.terms import find_terms
from undertow.torch.data.weighing import ratio_of, scaling_by

F = nn.functional
IGNORED, LENGTH, CLASSES, BATCH = -100, 4, 3, 22
Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]  # of the model, its outputs and the targets


def make_model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, LENGTH * CLASSES), nn.Unflatten(1, (LENGTH, CLASSES))).double()


def make_batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences of which an increasing part is ignored."""
    targets = torch.randint(0, CLASSES, (samples, LENGTH))
    for index in range(samples):
        targets[index, LENGTH - index % 4 :] = IGNORED
    return torch.randn(samples, 6).double(), targets


def spread(y: torch.Tensor) -> torch.Tensor:
    return F.one_hot(y.clamp(min=0), CLASSES).double()


def squares(o: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (o - spread(y)) ** 2


def entropy(o: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    return F.cross_entropy(o.flatten(0, 1), y.flatten(), reduction=reduction)


def by_time(o: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(time, batch)"""
    return F.cross_entropy(o.transpose(1, 2), y, reduction="none").T


def dice(o: torch.Tensor, y: torch.Tensor, *dims: int) -> torch.Tensor:
    p, t = o.softmax(-1), spread(y)
    return 1 - (2 * (p * t).sum(dims) / (p.sum(dims) + t.sum(dims))).mean()


def weights_of(m: nn.Module) -> torch.Tensor:
    return next(m.parameters())


KNOWN: dict[str, Loss] = {
    "a mean of a scalar": lambda m, o, y: entropy(o, y).mean(),
    "a sum of a scalar": lambda m, o, y: entropy(o, y).sum(),
    "stacked": lambda m, o, y: torch.stack([entropy(o, y), squares(o, y).mean()]).mean(),
    "shifted": lambda m, o, y: F.cross_entropy(o[:, :-1].reshape(-1, CLASSES), y[:, 1:].reshape(-1)),
    "chosen": lambda m, o, y: entropy(o, y, "none")[y.flatten() != IGNORED].mean(),
    "by a tensor": lambda m, o, y: entropy(o, y, "sum") / (y != IGNORED).sum(),
    "by its inverse": lambda m, o, y: entropy(o, y, "sum") * (1 / (y != IGNORED).sum()),
    "by samples": lambda m, o, y: squares(o, y).sum() / len(o),
    "by elements": lambda m, o, y: squares(o, y).sum() / o.numel(),
    "by targets of each": lambda m, o, y: (
        (by_time(o, y).T * (y != IGNORED)).sum(1) / (y != IGNORED).sum(1).clamp(min=1)
    ).mean(),
    "sum of rows": lambda m, o, y: squares(o, y).sum(0).mean(),
    "mean of rows": lambda m, o, y: squares(o, y).mean(0).sum(),
    "mean of columns": lambda m, o, y: squares(o, y).mean(-1).sum(),
    "sum of time": lambda m, o, y: by_time(o, y).sum(0).mean(),
    "mean of time": lambda m, o, y: by_time(o, y).mean(0).sum(),
    "steps": lambda m, o, y: torch.stack([o[:, step].square().sum(1) for step in range(LENGTH)]).sum(),
    "dice of samples": lambda m, o, y: dice(o, y, 1, 2),
    "distance": lambda m, o, y: (o - spread(y)).flatten(1).norm(dim=1).mean(),
    "flat divergence": lambda m, o, y: F.kl_div(
        o.log_softmax(-1).flatten(0, 1), spread(y).flatten(0, 1), reduction="batchmean"
    ),
    "connectionist": lambda m, o, y: F.ctc_loss(
        *(o.log_softmax(-1).transpose(0, 1), 1 + (y[:, :2] > 0).long()),
        *(torch.full((len(o),), LENGTH), torch.full((len(o),), 2)),
    ),
    "earlier weights": lambda m, o, y: squares(o, y).sum() + ((weights_of(m) - torch.ones(12, 6)) ** 2).sum(),
    "orthogonal": lambda m, o, y: squares(o, y).sum() + (weights_of(m).T @ weights_of(m) - torch.eye(6)).pow(2).sum(),
}
UNKNOWN: dict[str, Loss] = {
    "root": lambda m, o, y: squares(o, y).mean().sqrt(),
    "square of means": lambda m, o, y: o.mean(0).square().sum(),
    "mean of squared means": lambda m, o, y: o.mean(0).square().mean(),
    "dice of the batch": lambda m, o, y: dice(o, y, 0, 1),
    "variance": lambda m, o, y: F.relu(1 - o.std(0)).mean(),
    "normalised": lambda m, o, y: F.mse_loss((o - o.mean(0)) / o.std(0), spread(y)),
    "largest": lambda m, o, y: o.amax(0).mean(),
    "hardest": lambda m, o, y: entropy(o, y, "none").topk(3).values.mean(),
    "correlation": lambda m, o, y: (o.flatten(1).T @ o.flatten(1) / len(o)).pow(2).sum(),
    "in-batch negatives": lambda m, o, y: F.cross_entropy(o.flatten(1) @ o.flatten(1).T.detach(), torch.arange(len(o))),
    "mean times samples": lambda m, o, y: squares(o, y).mean() * len(o),
    "mean times targets": lambda m, o, y: entropy(o, y) * (y != IGNORED).sum(),
    "by itself": lambda m, o, y: squares(o, y).mean() / squares(o, y).mean().detach(),
    "by the largest": lambda m, o, y: squares(o, y).sum() / squares(o, y).max().detach(),
    "scalar by scalar": lambda m, o, y: sum(F.mse_loss(a, b) for a, b in zip(o, spread(y), strict=True)),
}


def gradients(model: nn.Module, loss: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    model.zero_grad()
    loss.backward(torch.full_like(loss, weight))
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def weigh_parts(loss: Loss, samples: int, ranks: int) -> tuple[float, list[str]]:
    """Return the error of the weighted shares relative to the whole batch, and the warnings."""
    model = make_model()
    x, y = make_batch(samples)
    losses = [loss(model, model(x[part]), y[part]) for part in cut_evenly(range(samples), ranks)]
    found = [find_terms([one]) for one in losses]
    sizes = [len(part) for part in cut_evenly(range(samples), ranks)]
    reports = [Report(size, tuple(one.term for one in terms)) for size, terms in zip(sizes, found, strict=True)]
    verdict = weigh(reports, batch=BATCH)
    whole = gradients(model, loss(model, model(x), y))
    total = torch.zeros_like(whole)
    for rank, (one, terms) in enumerate(zip(losses, found, strict=True)):
        weight = ranks * sizes[rank] / samples
        for term, weights in zip(terms, verdict.weights, strict=False):
            term.node.register_prehook(scaling_by(ratio_of(weights, rank, weight)))
        total += gradients(model, one, weight) / ranks
    return float((total - whole).abs().max()), verdict.doubts


@pytest.mark.parametrize("samples", [22, 17])
@pytest.mark.parametrize("name", KNOWN)
def test_weighted_shares_have_the_gradients_of_the_whole_batch(name: str, samples: int) -> None:
    off, doubts = weigh_parts(KNOWN[name], samples, 2)
    assert off < 1e-6  # a script computes its divisors in float32
    assert doubts == []


@pytest.mark.parametrize("samples", [22, 17])
@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_terms_cause_a_warning(name: str, samples: int) -> None:
    off, doubts = weigh_parts(UNKNOWN[name], samples, 2)
    assert off > 1e-6
    assert doubts != []
