"""What `distribute` refuses, and says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from undertow.errors import ConfigError
from undertow.torch import distribute


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
