"""DataLoaders of single-process scripts: which rank gets which samples, and with which weights."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from tests.support.data_loaders import LOADERS, NUMBERS, Counter, Dice
from tests.support.single_process import as_a_script, run
from tests.support.workers import outcomes_of


def iterate(rank: int, name: str) -> list[list[list[float]]]:
    torch.manual_seed(3)
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    loader = DataLoader(NUMBERS.tolist(), **LOADERS[name])  # type: ignore[arg-type]
    epochs = []
    for _ in range(3):
        epochs.append([])
        for batch in loader:
            epochs[-1].append(torch.as_tensor(batch).reshape(-1).tolist())
            torch.rand(rank + 1)  # like dropout on shares of different sizes
    return epochs


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("batch", ["same", "split"])
def test_each_sample_goes_to_one_rank_in_every_epoch(name: str, batch: str) -> None:
    if (name, batch) == ("no batches", "split"):
        pytest.skip("there is nothing to split")
    ranks = run(3, iterate, name, UNDERTOW_BATCH=batch)
    orders = []
    for epoch in zip(*ranks, strict=True):
        assert len({len(batches) for batches in epoch}) == 1  # all ranks make the same number of steps
        seen = [sample for batches in epoch for part in batches for sample in part]
        assert set(seen) == set(NUMBERS.tolist())
        # A rank without a sample at the end gets one with weight zero.
        assert len(seen) - len(set(seen)) <= (20 if name.startswith("own batches") else 2)
        orders.append(epoch[0])
    assert name == "own batches" or orders[0] != orders[1] != orders[2]


def draw_lazily(rank: int) -> list[list[int]]:
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    random.seed(1)
    loader = DataLoader(range(22), batch_sampler=Dice(), collate_fn=list)  # type: ignore[arg-type]
    return [[sample for batch in loader for sample in batch] for _ in range(3)]


def test_a_lazy_sampler_draws_the_same_as_in_one_process() -> None:
    alone = run(1, draw_lazily)[0]
    first, second = run(2, draw_lazily, UNDERTOW_BATCH="split")
    assert [sorted(epoch) for epoch in alone] == [list(range(22))] * 3
    for epoch in range(3):
        both = [*zip(first[epoch], second[epoch], strict=True)]
        assert [sample for pair in both for sample in pair] == alone[epoch]


class Unlike(Sampler[int]):
    """A sampler that draws differently on each rank, whatever the seed."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(os.getpid()).sample(range(22), 22))

    def __len__(self) -> int:
        return 22


def shuffle_unlike(rank: int) -> None:
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    list(DataLoader(range(22), batch_size=2, sampler=Unlike()))  # type: ignore[arg-type]


def test_different_orders_of_the_data_are_an_error() -> None:
    for outcome in outcomes_of(2, as_a_script, shuffle_unlike, init=False):
        assert outcome.kind == "DriftError"
        assert "'the order of the data'" in outcome.text


def evaluate_by_the_same(rank: int) -> list[int]:
    """Use one loader with persistent workers for training and for evaluation."""
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    loader = DataLoader(NUMBERS, batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
    counts = []
    for _ in range(2):
        counts.append(sum(len(batch) for batch in loader))
        with torch.no_grad():
            counts.append(sum(len(batch) for batch in loader))
    return counts


def test_persistent_workers_load_the_requested_samples() -> None:
    assert run(2, evaluate_by_the_same) == [[12, 22, 12, 22], [10, 22, 10, 22]]


class Range(IterableDataset[int]):
    def __init__(self) -> None:
        self.start, self.end = 0, 16

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def take_half(worker: int) -> None:
    """Give each worker its share, as in torch's documentation."""
    dataset = torch.utils.data.get_worker_info().dataset
    dataset.start, dataset.end = (0, 8) if worker == 0 else (8, 16)


def stream_by_halves(rank: int) -> list[int]:
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    loader = DataLoader(Range(), batch_size=2, num_workers=2, worker_init_fn=take_half)
    return sorted(sample for batch in loader for sample in batch.tolist())


def test_a_streams_workers_can_be_given_their_share() -> None:
    assert run(2, stream_by_halves) == [list(range(0, 16, 2)), list(range(1, 16, 2))]


def count(rank: int) -> list[int]:
    loaders = [DataLoader(NUMBERS, batch_size=4, shuffle=True, drop_last=drop) for drop in (False, True)]  # type: ignore[arg-type]
    before = [len(loader) for loader in loaders]
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    return [*before, *(len(loader) for loader in loaders), *(len(list(loader)) for loader in loaders)]


def test_a_loaders_length_is_that_of_the_ranks_share() -> None:
    assert run(2, count) == [[6, 5, 3, 2, 3, 2]] * 2
    assert run(2, count, UNDERTOW_BATCH="split") == [[6, 5, 6, 5, 6, 5]] * 2


def evaluate(rank: int) -> list[int]:
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    sequential = DataLoader(NUMBERS, batch_size=5)  # type: ignore[arg-type]
    shuffling = DataLoader(NUMBERS, batch_size=5, shuffle=True)  # type: ignore[arg-type]
    stream = DataLoader(Counter(), batch_size=5)
    with torch.no_grad():
        return [sum(len(batch) for batch in loader) for loader in (sequential, shuffling, stream)]


def test_loaders_for_evaluation_are_not_shared() -> None:
    assert run(2, evaluate) == [[22, 22, 22]] * 2


def stream(rank: int, workers: int) -> tuple[int, list[list[float]]]:
    torch.manual_seed(1)
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    loader = DataLoader(Counter(), batch_size=4, num_workers=workers)
    length, batches = len(loader), []
    for batch in loader:
        batches.append(batch.tolist())
        torch.rand(rank + 1)
    return length, batches


@pytest.mark.parametrize("workers", [0, 1])
def test_streams_are_strided(workers: int) -> None:
    for batch, sizes in (("same", [4, 3]), ("split", [2, 2, 2, 1])):
        lengths, parts = zip(*run(2 if batch == "split" else 3, stream, workers, UNDERTOW_BATCH=batch), strict=True)
        assert set(lengths) == {len(parts[0])}
        assert all([len(part) for part in own][: len(sizes) - 1] == sizes[:-1] for own in parts)
        seen = [sample for own in parts for part in own for sample in part]
        assert len(seen) == len(set(seen)) >= 20


class Squares(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([float(index)]), torch.tensor([float(index) ** 2])


def fit(rank: int) -> list[float]:
    """Train with batches of 3, 3, 3 and 2 on 4 ranks, some of which get no sample."""
    torch.manual_seed(2)
    model = nn.Linear(1, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        for x, y in DataLoader(Squares(), batch_size=3, shuffle=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x.double()), y.double()).backward()
            optimizer.step()
    return [p.item() for p in model.parameters()]


def test_uneven_shares_are_weighted_exactly() -> None:
    alone = run(1, fit)[0]
    for size in (2, 4):
        for own in run(size, fit, UNDERTOW_BATCH="split"):
            assert own == pytest.approx(alone, rel=1e-12)


def fetch_ahead(rank: int, ahead: bool) -> bool:
    model = nn.Linear(1, 1)
    torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(DataLoader(TensorDataset(NUMBERS.reshape(22, 1)), batch_size=4, shuffle=True))
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        waiting = [next(batches)] if ahead else []
        for batch in batches:
            waiting.append(batch)
            model(waiting.pop(0)[0]).sum().backward()
    return "so the batch before a smaller last batch gets the weight of the smaller one" in said.getvalue()


def test_scripts_that_prefetch_are_warned_about_uneven_batches() -> None:
    assert run(2, fetch_ahead, True, UNDERTOW_BATCH="split") == [False, False]  # 4, 4, 4, 4, 4 and 2 divide evenly
    assert run(4, fetch_ahead, True, UNDERTOW_BATCH="split")[0]
    assert not run(4, fetch_ahead, False, UNDERTOW_BATCH="split")[0]


def draw(rank: int) -> dict[str, list[float]]:
    """Return the numbers that a script draws before, during and after training."""
    torch.manual_seed(4)
    model = nn.Linear(1, 1)
    torch.optim.SGD(model.parameters(), lr=0.1)
    drawn: dict[str, list[float]] = {"before": torch.rand(2).tolist(), "while": [], "data": []}
    for (x,) in DataLoader(TensorDataset(NUMBERS), batch_size=4, shuffle=True):
        drawn["data"] += x.tolist()
        drawn["while"] += nn.functional.dropout(torch.ones(8)).tolist()
    drawn["after"] = torch.rand(2).tolist()
    return drawn


def test_only_dropout_differs_between_ranks() -> None:
    ranks = run(3, draw)
    for first, second in itertools.combinations(ranks, 2):
        assert first["before"] == second["before"]
        assert first["while"] != second["while"]
        assert not set(first["data"]) & set(second["data"])
        assert first["after"] == second["after"]


def sum_vector(rank: int) -> None:
    model = nn.Linear(1, 1)
    torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(NUMBERS.reshape(22, 1)), batch_size=3, shuffle=True):
        model(x).backward()


def test_loaders_that_torch_refuses_stay_refused() -> None:
    outcomes = outcomes_of(2, as_a_script, sum_vector, init=False, environment={"UNDERTOW_BATCH": "split"})
    assert any("only for scalar outputs" in outcome.text for outcome in outcomes)


def refuse(rank: int, options: dict[str, Any]) -> None:
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    data = Counter() if options.pop("stream", False) else NUMBERS.tolist()
    next(iter(DataLoader(data, **options)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": None, "shuffle": True}, "has nothing to split"),
        ({"batch_size": 3, "stream": True}, "batches of 3 samples of a stream cannot be split evenly among 2 workers"),
        ({"batch_size": 4, "shuffle": True, "in_order": False, "num_workers": 1}, "in_order=False cannot be shared"),
    ],
)
def test_batches_that_cannot_be_split_are_refused(options: dict[str, Any], words: str) -> None:
    outcomes = outcomes_of(2, as_a_script, refuse, options, init=False, environment={"UNDERTOW_BATCH": "split"})
    # A rank that is later is notified of the first rank's end.
    assert {outcome.kind for outcome in outcomes} <= {"ConfigError", "PeerLost"}
    assert any(words in outcome.text for outcome in outcomes)
