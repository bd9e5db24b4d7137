"""`undertow.torch.distribute`: scripts that join the workers themselves share the batches of an ordinary DataLoader."""

from __future__ import annotations

import functools
import logging
import multiprocessing
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import undertow
from tests.support.data_loaders import LOADERS, NUMBERS, Counter
from tests.support.workers import outcomes_of, run_workers
from undertow.script.preparation import prepare
from undertow.torch import DistributedDataParallel, distribute, parallelize

IGNORED = -100


class Squares(Dataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """A dataset with classes, some of which the loss ignores, so that ranks count different numbers of targets."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        number = torch.tensor([float(index)]).double()
        return number / 11, (number / 11) ** 2, torch.tensor(IGNORED if index % 3 == 0 else index % 2)


def fit(rank: int, api: str, batch: int) -> tuple[list[float], list[float], float]:
    """Return the weights, the loss over all data after each epoch, and the samples of the last validation batch."""
    torch.manual_seed(2 + rank)  # weights are rank 0's, and so is the order
    model: Any = nn.Linear(1, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if api == "parallelize":
        model, optimizer = parallelize(model, optimizer)
    else:
        model = DistributedDataParallel(model)
    loader = distribute(DataLoader(Squares(), batch_size=batch, shuffle=True))
    validation = distribute(DataLoader(Squares(), batch_size=4))
    curve = []
    for _ in range(3):
        for x, y, target in loader:
            optimizer.zero_grad()
            found = model(x)
            loss = nn.functional.mse_loss(found[:, :1], y)
            loss = loss + nn.functional.cross_entropy(found[:, 1:], target, ignore_index=IGNORED)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            curve.append(sum(((model(x)[:, :1] - y) ** 2).sum().item() for x, y, _ in validation))
    weights = [number for p in model.parameters() for number in p.detach().flatten().tolist()]
    return weights, curve, len(validation)


@pytest.mark.parametrize("api", ["class", "parallelize"])
def test_workers_that_split_batches_train_as_one_process(api: str) -> None:
    """Batches of 4, 4 and 3 for 2 and 3 workers, and of 3, 3, 3 and 2 for 4 workers, some of which have no samples."""
    for size, batch in ((2, 4), (3, 4), (4, 3)):
        weights, curve, batches = run_workers(1, fit, api, batch)[0]
        for own in run_workers(size, fit, api, batch, environment={"UNDERTOW_BATCH": "split"}):
            assert own[0] == pytest.approx(weights, rel=1e-12)
            assert own[1] == pytest.approx(curve, rel=1e-12)
            assert own[2] == batches


def test_workers_that_keep_the_batch_size_train_as_one_process_with_the_larger_batch() -> None:
    """Twice 3 samples, twice 3, and the rest, which is even for neither number of workers."""
    weights, curve, _ = run_workers(1, fit, "class", 6)[0]
    for own in run_workers(2, fit, "class", 3):
        assert own[0] == pytest.approx(weights, rel=1e-12)
        assert own[1] == pytest.approx(curve, rel=1e-12)


Seen = dict[str, list[list[list[float]]]]


def go_through(rank: int, names: list[str]) -> Seen:
    """Return the samples of each batch in two epochs of each loader."""
    multiprocessing.set_start_method("fork", force=True)
    torch.manual_seed(rank)
    seen: Seen = {}
    for name in names:
        options = LOADERS.get(name, {"batch_size": 4})
        loader = distribute(DataLoader(NUMBERS.tolist(), **options))  # type: ignore[arg-type]
        seen[name] = []
        for _ in range(2):
            seen[name].append([])
            for batch in loader:
                seen[name][-1].append(torch.as_tensor(batch).reshape(-1).tolist())
                torch.rand(rank + 1)  # like dropout on shares of different size
    return seen


@pytest.mark.parametrize("batch", ["same", "split"])
def test_each_sample_goes_to_one_worker_in_every_epoch(batch: str) -> None:
    names = [name for name in (*LOADERS, "in order") if (name, batch) != ("no batches", "split")]
    ranks: list[Seen] = run_workers(3, go_through, names, environment={"UNDERTOW_BATCH": batch})
    for name in ranks[0]:
        for epoch in zip(*(seen[name] for seen in ranks), strict=True):
            assert len({len(batches) for batches in epoch}) == 1, name  # the same number of steps on all ranks
            parts = [sample for batches in epoch for part in batches for sample in part]
            assert set(parts) == set(NUMBERS.tolist()), name
            assert len(parts) - 22 <= (20 if name.startswith("own batches") else 2), name
        assert name in ("in order", "own batches") or ranks[0][name][0] != ranks[0][name][1], name


def look_at(rank: int) -> dict[str, Any]:
    """Return properties of a distributed loader and of the original."""
    original = DataLoader(NUMBERS, batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
    multiprocessing.set_start_method("fork", force=True)
    loader = distribute(original)
    found: dict[str, Any] = {"counts": [len(loader), sum(map(len, loader)), sum(map(len, loader))]}
    with torch.no_grad():
        found["whole"] = [len(loader), sum(map(len, loader))]
    found["original"] = [len(original), sum(map(len, original))]
    found["kept"] = (
        isinstance(loader, DataLoader)
        and loader.dataset is original.dataset
        and loader.sampler is original.sampler
        and (loader.batch_size, loader.drop_last, loader.num_workers) == (4, False, 1)
        and distribute(loader) is loader is not original
    )
    dropping = distribute(DataLoader(NUMBERS, batch_size=4, shuffle=True, drop_last=True))  # type: ignore[arg-type]
    found["dropping"] = [len(dropping), sum(map(len, dropping))]
    undertow.shutdown()
    found["alone again"] = sum(map(len, loader))
    return found


def test_a_distributed_loader_is_one_of_the_same_kind() -> None:
    """Of 22 samples in batches of 4, the last 6 are divided."""
    expected = {"whole": [6, 22], "original": [6, 22], "kept": True, "alone again": 22}
    first, second = run_workers(2, look_at)
    assert first == {**expected, "counts": [3, 12, 12], "dropping": [2, 8]}
    assert second == {**expected, "counts": [3, 10, 10], "dropping": [2, 8]}


def draw(rank: int, apart: int) -> float:
    """Return the script's next random number after an epoch."""
    torch.manual_seed(rank * apart)
    list(distribute(DataLoader(NUMBERS, batch_size=4, shuffle=True)))  # type: ignore[arg-type]
    return torch.rand(()).item()


def draw_without_order(seed: int) -> float:
    torch.manual_seed(seed)
    torch.empty((), dtype=torch.int64).random_()  # every DataLoader draws a seed for its workers
    return torch.rand(()).item()


def test_the_scripts_random_numbers_do_not_change() -> None:
    alone = run_workers(1, draw, 0)[0]
    assert run_workers(2, draw, 0) == [alone, alone]
    assert run_workers(2, draw, 7) == [alone, pytest.approx(draw_without_order(7))]


def go_through_streams(rank: int) -> list[list[float]]:
    multiprocessing.set_start_method("fork", force=True)
    torch.manual_seed(rank)
    found = []
    for workers in (0, 1):
        loader = distribute(DataLoader(Counter(), batch_size=4, num_workers=workers, persistent_workers=workers > 0))
        assert len(loader) == 3
        for _ in range(2):
            found.append([sample for batch in loader for sample in batch.tolist()])
        with torch.no_grad():
            assert workers or sum(map(len, loader)) == 22  # persistent workers continue with their share
    return found


def test_streams_are_strided() -> None:
    for first, second in zip(*run_workers(2, go_through_streams), strict=True):
        assert sorted(first + second) == NUMBERS.tolist()
        assert len(first) == len(second) == 11


def differ_in_size(rank: int) -> None:
    list(distribute(DataLoader(range(20 + rank), batch_size=4, shuffle=True)))  # type: ignore[arg-type]


def differ_in_order(rank: int) -> None:
    numbers = torch.Generator().manual_seed(rank)
    list(distribute(DataLoader(range(20), batch_size=4, shuffle=True, generator=numbers)))  # type: ignore[arg-type]


def split_stream(rank: int) -> None:
    distribute(DataLoader(Counter(), batch_size=3))


def use_after_parting(rank: int) -> None:
    loader = distribute(DataLoader(range(20), batch_size=4, shuffle=True))  # type: ignore[arg-type]
    undertow.shutdown()
    undertow.init()
    list(loader)


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (differ_in_size, "DriftError", "the same loader over all of the data on every worker"),
        (differ_in_order, "DriftError", "the same seed on all workers"),
        (split_stream, "ConfigError", "batches of 3 samples of a stream cannot be split evenly among 2 workers"),
        (use_after_parting, "ConfigError", r"call undertow.torch.distribute() again"),
    ],
)
def test_diverging_loaders_are_errors(body: Any, kind: str, words: str) -> None:
    outcomes = outcomes_of(2, body, environment={"UNDERTOW_BATCH": "split"})
    assert {outcome.kind for outcome in outcomes} <= {kind, "PeerLost"}
    assert any(words in outcome.text for outcome in outcomes)


def train_with_a_probe(rank: int, probing: bool) -> list[float]:
    """Train a probe on one worker's features, and inspect the model's inputs, in the loop and after it."""
    torch.manual_seed(2)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double())
    probe = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def look(x: torch.Tensor, y: torch.Tensor) -> None:
        features = model.module[0](x).detach()
        nn.functional.mse_loss(probe(features), y).backward()
        image = x.clone().requires_grad_()
        model.module(image).sum().backward(inputs=[image])
        assert image.grad is not None

    for step, (x, y, _) in enumerate(distribute(DataLoader(Squares(), batch_size=4, shuffle=True))):
        optimizer.zero_grad()
        if probing and rank == 0:
            look(x, y)
        with model.no_sync():  # micro-batches of a step are weighed as well
            nn.functional.mse_loss(model(x), y).backward()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        if probing and rank == 1:
            look(x, y)
        if step == 2:
            break
    if probing and rank == 0:
        look(x, y)
    return [number for p in model.parameters() for number in p.detach().flatten().tolist()]


def test_one_worker_may_call_backward_where_nothing_is_synchronised() -> None:
    """Batches of 4, 4 and 3 for 2 workers: the last one has a different weight on each."""
    split = {"UNDERTOW_BATCH": "split", "UNDERTOW_STALL_TIMEOUT": "20"}
    expected = run_workers(1, train_with_a_probe, False)[0]
    for weights in run_workers(2, train_with_a_probe, True, environment=split):
        assert weights == pytest.approx(expected, rel=1e-12)


def train_under_run(rank: int) -> tuple[list[float], bool]:
    """As `undertow run` starts a script; its optimizer, made late, takes back what was patched until then.

    A library of the script's own wraps backward as well.
    """
    original = torch.autograd.backward
    prepare(None)
    undertow.init()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(1, 1).double())
    optimizer: Any = None
    ours: Any = None
    for x, y, _ in distribute(DataLoader(Squares(), batch_size=3, shuffle=True)):
        if optimizer is None:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        elif ours is None:
            ours = torch.autograd.backward
            torch.autograd.backward = functools.partial(ours)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    torch.autograd.backward = ours
    weights = [p.item() for p in model.parameters()]
    undertow.shutdown()
    return weights, torch.autograd.backward is original


def test_a_launched_script_is_weighed_and_shutdown_restores_torch() -> None:
    alone = run_workers(1, train_under_run, init=False)[0][0]
    for weights, is_torchs_own in run_workers(4, train_under_run, init=False, environment={"UNDERTOW_BATCH": "split"}):
        assert weights == pytest.approx(alone, rel=1e-12)
        assert is_torchs_own


def count_steps(rank: int) -> int:
    undertow.init(batch="split")
    return len(distribute(DataLoader(range(20), batch_size=4, shuffle=True)))  # type: ignore[arg-type]


def test_an_argument_of_init_says_that_batches_are_split() -> None:
    assert run_workers(2, count_steps, init=False) == [5, 5]


def hear_of_sums(rank: int) -> list[str]:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("undertow").addHandler(handler)
    model = DistributedDataParallel(nn.Linear(1, 1).double())
    for x, _, _ in distribute(DataLoader(Squares(), batch_size=3, shuffle=True)):
        model(x).sum().backward()
    return [words for words in heard if "is summed over all workers" in words]


def test_rank_0_logs_once_how_a_loss_is_weighed() -> None:
    first, second = run_workers(2, hear_of_sums)
    assert (len(first), len(second)) == (1, 0)
