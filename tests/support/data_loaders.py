"""Every kind of DataLoader over 22 numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, Sampler, SubsetRandomSampler

NUMBERS = torch.arange(22.0)


class Backwards(Sampler[int]):
    """A sampler defined by a script."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(22).tolist()[::-1])

    def __len__(self) -> int:
        return 22


class Buckets(Sampler[list[int]]):
    """A sampler of batches of different sizes, drawn lazily."""

    def __iter__(self) -> Iterator[list[int]]:
        left = list(range(22))
        while left:
            size = int(torch.randint(1, 6, ()))
            yield left[:size]
            left = left[size:]


class Dice(Sampler[list[int]]):
    """A sampler of batches that draws from Python's generator, always the same number of batches."""

    def __iter__(self) -> Iterator[list[int]]:
        left = list(range(22))
        while left:
            yield [left.pop(random.randrange(len(left))) for _ in range(2)]


class Counter(IterableDataset[float]):
    """A stream whose order is drawn sample by sample."""

    def __iter__(self) -> Iterator[float]:
        left = NUMBERS.tolist()
        while left:
            yield left.pop(int(torch.randint(len(left), ())))

    def __len__(self) -> int:
        return 22


LOADERS: dict[str, dict[str, Any]] = {
    "shuffle": {"batch_size": 4, "shuffle": True},
    "shuffle, workers": {"batch_size": 4, "shuffle": True, "num_workers": 1},
    "shuffle, persistent": {"batch_size": 4, "shuffle": True, "num_workers": 1, "persistent_workers": True},
    "shuffle, generator": {"batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(5)},
    "subset": {"batch_size": 4, "sampler": SubsetRandomSampler(range(22))},
    "own": {"batch_size": 4, "sampler": Backwards()},
    "batches": {"batch_sampler": BatchSampler(RandomSampler(range(22)), 4, drop_last=False)},
    "own batches": {"batch_sampler": Buckets()},
    "own batches, Python's": {"batch_sampler": Dice()},
    "no batches": {"batch_size": None, "shuffle": True},
}
