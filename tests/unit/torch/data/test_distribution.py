"""Loaders that `distribute` refuses, and the reasons it gives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from tests.support.fake_group import FakeGroup
from undertow.engine.client.waiting import Ticket, Waiters
from undertow.engine.core.flow import Contribution
from undertow.errors import ConfigError, PeerLost, UndertowError
from undertow.sync.batches.reports import Report
from undertow.torch import distribute
from undertow.torch.data import weighing
from undertow.torch.data.loaders import check_shareable
from undertow.torch.data.replacements import find_backward, run_backward


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
        (Endless(NUMBERS), "Endless overrides __iter__"),  # type: ignore[arg-type]
        (DataLoader(NUMBERS, sampler=SAMPLER), "already gives each worker its share"),  # type: ignore[arg-type]
        (DataLoader(NUMBERS, batch_sampler=BatchSampler(SAMPLER, 2, False)), "gives each worker its share"),  # type: ignore[arg-type]
    ],
)
def test_loaders_that_cannot_be_shared_are_refused_immediately(loader: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        distribute(loader)


class Counter(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(NUMBERS)


def test_messages_name_the_variable_as_well_as_the_flag() -> None:
    sharing: Any = SimpleNamespace(size=2, is_split=True)
    with pytest.raises(ConfigError, match=r"nothing to split; use --batch same \(or UNDERTOW_BATCH=same\)"):
        check_shareable(sharing, DataLoader(NUMBERS, batch_size=None))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^--batch split \(or UNDERTOW_BATCH=split\): batches of 3 samples"):
        check_shareable(sharing, DataLoader(Counter(), batch_size=3))
    assert "(--batch split or UNDERTOW_BATCH=split leaves them as they are)" in weighing._SUMMED


class SilentGroup(FakeGroup):
    """A fake group whose answers never arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.waiters = Waiters(0.01, lambda waited_s: None)

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None: ...

    def wait_for(self, ticket: Ticket, reason: str = "", *, tensor: str = "") -> None:
        self.waiters.wait_for(ticket, reason, tensor=tensor)


def test_a_timeout_in_backward_explains_that_all_workers_must_call_it() -> None:
    group = SilentGroup()
    sharing: Any = SimpleNamespace()
    weigher = weighing.LossWeigher(sharing)
    with pytest.raises(UndertowError, match=r"nothing has arrived .* all workers must call backward equally often"):
        weigher.exchange(group, Report(1, ()))
    group.error = PeerLost("it closed", rank=1)
    group.waiters.fail(group.error)
    with pytest.raises(PeerLost, match=r"^rank 1 was lost: it closed$"):
        weigher.exchange(group, Report(1, ()))


def test_another_librarys_wrapper_around_our_backward_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
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
