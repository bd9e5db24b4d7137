"""What `distribute` refuses, and says why."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from undertow.errors import ConfigError
from undertow.torch import distribute
from undertow.torch.data.standins import find_backward, run_backward


class Endless(DataLoader[int]):
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        while True:
            yield from super().__iter__()


NUMBERS = list(range(6))
SAMPLER = DistributedSampler(NUMBERS, num_replicas=2, rank=0)  # type: ignore[arg-type,var-annotated]


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (DataLoader(NUMBERS, shuffle=True), r"undertow\.init\(\)"),  # type: ignore[arg-type]
        (NUMBERS, "takes a torch.utils.data.DataLoader, not list"),
        (iter(DataLoader(NUMBERS)), "not _SingleProcessDataLoaderIter"),  # type: ignore[arg-type]
        (Endless(NUMBERS), "Endless iterates in a way of its own"),  # type: ignore[arg-type]
        (DataLoader(NUMBERS, sampler=SAMPLER), "gives each worker its part already"),  # type: ignore[arg-type]
        (DataLoader(NUMBERS, batch_sampler=BatchSampler(SAMPLER, 2, False)), "its part already"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_shared_is_refused_at_once(loader: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        distribute(loader)


def test_backward_of_another_library_around_ours_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    torchs = torch.autograd.backward
    sharing: Any = SimpleNamespace()
    ours = run_backward(torchs, sharing)

    @functools.wraps(ours)
    def theirs(*arguments: Any, **options: Any) -> None:
        ours(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "backward", ours)
    assert find_backward() is torchs
    monkeypatch.setattr(torch.autograd, "backward", theirs)
    assert find_backward() is theirs
