"""Losses of single-process scripts: whatever they sum or average, the run equals that of one process."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.single_process import flat, run

IGNORED = -100
CLASSES = 3
WEIGHT = torch.tensor([0.2, 1.0, 3.0]).double()
SAMPLES = 22
BATCH = 5

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]  # of the model, its outputs and the targets


def spread(targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.one_hot(targets.clamp(min=0), CLASSES).movedim(-1, 1).double()


def masked(model: nn.Module, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    mask = targets != IGNORED
    return (nn.functional.cross_entropy(outputs, targets, reduction="none") * mask).sum() / mask.sum()


def variational(model: nn.Module, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    likelihood = nn.functional.binary_cross_entropy_with_logits(outputs, spread(targets), reduction="sum")
    return likelihood - 0.5 * torch.sum(1 + outputs - outputs.pow(2) - outputs.exp())


LOSSES: dict[str, Loss] = {
    "ignored": lambda model, o, y: nn.functional.cross_entropy(o, y),
    "class weights": lambda model, o, y: nn.CrossEntropyLoss(weight=WEIGHT)(o, y),
    "nll": lambda model, o, y: nn.functional.nll_loss(o.log_softmax(1), y, weight=WEIGHT),
    "smoothed": lambda model, o, y: nn.functional.cross_entropy(o, y, label_smoothing=0.2),
    "smoothed, class weights": lambda model, o, y: nn.functional.cross_entropy(
        o, y, weight=WEIGHT, label_smoothing=0.2
    ),
    "smoothed sum": lambda model, o, y: nn.functional.cross_entropy(o, y, label_smoothing=0.2, reduction="sum"),
    "probabilities": lambda model, o, y: nn.functional.cross_entropy(o, spread(y), weight=WEIGHT),
    "sum": lambda model, o, y: nn.functional.cross_entropy(o, y, reduction="sum"),
    "sum of squares": lambda model, o, y: nn.functional.mse_loss(o, spread(y), reduction="sum"),
    "absolute sum": lambda model, o, y: nn.functional.l1_loss(o, spread(y), reduction="sum"),
    "sum by batchmean": lambda model, o, y: nn.functional.kl_div(o.log_softmax(1), spread(y), reduction="batchmean"),
    "sum by samples": lambda model, o, y: 0.5 * nn.functional.smooth_l1_loss(o, spread(y), reduction="sum") / len(o),
    "sum by targets": lambda model, o, y: nn.functional.cross_entropy(o, y, reduction="sum") / (y != IGNORED).sum(),
    "sum times a constant": lambda model, o, y: 0.3 * nn.functional.huber_loss(o, spread(y), reduction="sum"),
    "sum by a constant": lambda model, o, y: nn.functional.cross_entropy(o, y, reduction="sum") / BATCH,
    "own sum": lambda model, o, y: ((o - spread(y)) ** 2).sum(),
    "own mean, features summed": lambda model, o, y: ((o - spread(y)) ** 2).mean(0).sum(),
    "masked": masked,
    "two sums": variational,
    "mean and ignored": lambda model, o, y: (
        nn.functional.mse_loss(o, spread(y)) / 3 + 0.7 * nn.functional.cross_entropy(o, y)
    ),
    "penalty": lambda model, o, y: (
        nn.functional.cross_entropy(o, y) + 0.1 * sum(p.pow(2).sum() for p in model.parameters())
    ),
    "sum, penalty": lambda model, o, y: (
        nn.functional.mse_loss(o, spread(y), reduction="sum") + sum(map(norm, model.parameters()))
    ),
}


def norm(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.norm()


def make_data() -> TensorDataset:
    """Return sequences with more and more ignored targets; in two of them, all are ignored."""
    numbers = torch.Generator().manual_seed(5)
    targets = torch.randint(0, CLASSES, (SAMPLES, 4), generator=numbers)
    for index in range(SAMPLES):
        targets[index, 4 - index % 5 :] = IGNORED
    return TensorDataset(torch.randn(SAMPLES, 6, generator=numbers).double(), targets)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, CLASSES * 4), nn.Unflatten(1, (CLASSES, 4))).double()


def fit(rank: int, batch: int) -> dict[str, list[float]]:
    return fit_to(LOSSES, batch)


def fit_to(losses: dict[str, Loss], batch: int) -> dict[str, list[float]]:
    """Train a model for each loss, with one optimizer for all, because adopting one takes longer than its steps."""
    torch.manual_seed(2)
    models = {name: make_model() for name in losses}
    optimizer = torch.optim.SGD([p for model in models.values() for p in model.parameters()], lr=1e-2)
    for _ in range(2):
        for x, y in DataLoader(make_data(), batch_size=batch, shuffle=True):
            optimizer.zero_grad()
            for name, loss in losses.items():
                loss(models[name], models[name](x), y).backward()
            optimizer.step()
    return {name: flat(model) for name, model in models.items()}


def assert_same(fitted: dict[str, list[float]], alone: dict[str, list[float]]) -> None:
    differences = {
        name: max((abs(a - b) for a, b in zip(fitted[name], alone[name], strict=True)), default=0.0) for name in LOSSES
    }
    assert {name: difference for name, difference in differences.items() if not difference < 1e-9} == {}


@pytest.mark.parametrize("size", [2, 4])
def test_a_split_batch_gives_the_weights_of_one_process(size: int) -> None:
    alone = run(1, fit, BATCH)[0]
    for fitted in run(size, fit, BATCH, UNDERTOW_BATCH="split"):
        assert_same(fitted, alone)


def test_the_same_batch_on_each_worker_is_one_larger_batch() -> None:
    constant = "sum by a constant"  # in one process, the constant would be twice as large
    alone = run(1, fit, 2 * BATCH)[0]
    [fitted, _] = run(2, fit, BATCH)
    assert_same({**fitted, constant: []}, {**alone, constant: []})


def speak(rank: int) -> tuple[str, str, str]:
    """Return the messages about a known loss, an unknown loss and a sum."""
    return (
        hear(lambda model, o, y: nn.functional.cross_entropy(o, y)),
        hear(lambda model, o, y: o.square().mean().sqrt()),
        hear(lambda model, o, y: o.square().sum()),
    )


def hear(loss: Loss) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        fit_to({"heard": loss}, BATCH)
    return said.getvalue()


def test_an_unknown_loss_is_reported_once_by_rank_0() -> None:
    (known, unknown, summed), others = run(2, speak)
    assert "term of the loss" not in known
    assert unknown.count("a term of the loss is not known to be a sum or a mean over the batch") == 1
    assert summed.count("the loss is a sum over the batch: it is summed over all workers") == 1
    assert not any("loss" in text for text in others)


def go_own_ways(rank: int) -> tuple[list[float], list[float]]:
    """Train with sums whose backward runs after the loader has ended, or inside compiled code."""
    warnings.simplefilter("ignore")  # of the compiler's
    compiled = torch.compile(compute, backend="eager")
    return train(lambda loader: iter(list(loader)), compute), train(iter, compiled)


def train(fetch: Callable[[Any], Any], compute: Callable[..., None]) -> list[float]:
    torch.manual_seed(2)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = torch.utils.data.Subset(make_data(), range(4 * BATCH))
    for x, y in fetch(DataLoader(data, batch_size=2 * BATCH, shuffle=True)):
        optimizer.zero_grad()
        compute(model, x, y)
        optimizer.step()
    return flat(model)


def compute(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()


def test_a_backward_after_the_loaders_end_or_in_compiled_code_is_weighted() -> None:
    ahead, compiled = run(1, go_own_ways)[0]
    for own_ahead, own_compiled in run(2, go_own_ways, UNDERTOW_BATCH="split"):
        assert own_ahead == pytest.approx(ahead, abs=1e-9)
        assert own_compiled == pytest.approx(compiled, abs=1e-9)


def checkpoint(rank: int) -> list[float]:
    """Train with shares of 3 and 2 samples, and a nested backward."""
    torch.manual_seed(2)
    first, second = nn.Linear(6, 4).double(), nn.Linear(4, CLASSES * 4).double()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-2)
    for x, y in DataLoader(make_data(), batch_size=BATCH, shuffle=True):
        optimizer.zero_grad()
        hidden = torch.utils.checkpoint.checkpoint(first, x.requires_grad_(), use_reentrant=True)
        nn.functional.cross_entropy(second(hidden).reshape(-1, CLASSES, 4), y).backward()
        optimizer.step()
    return flat(first) + flat(second)


def test_a_nested_backward_is_weighted_once() -> None:
    alone = run(1, checkpoint)[0]
    assert run(2, checkpoint, UNDERTOW_BATCH="split") == [pytest.approx(alone, abs=1e-9)] * 2
