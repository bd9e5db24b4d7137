"""Buckets of gradients that torch's process group sums: called in one order, and answered once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.slow_group import SlowGroup
from undertow.sizing import Sizes
from undertow.sync.completion import Completion
from undertow.torch.gradient import allreduce
from undertow.torch.gradient.allreduce import AllreduceBuckets, AllreduceSyncer
from undertow.torch.slots.device import HostCopier
from undertow.torch.slots.slot import TorchSlot


class Collectives:
    """A process group of two whose other worker has the same gradients; sums end when the test says so."""

    def __init__(self) -> None:
        self.called: list[tuple[torch.Tensor, torch.futures.Future[Any]]] = []

    def all_reduce(self, memory: torch.Tensor, *, group: Any, async_op: bool) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()
        self.called.append((memory, future))
        return SimpleNamespace(get_future=lambda: future, wait=lambda: None)

    def end(self, number: int = 0) -> None:
        memory, future = self.called[number]
        memory.mul_(2)
        future.set_result(None)


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> Collectives:
    made = Collectives()
    monkeypatch.setattr(allreduce.dist, "all_reduce", made.all_reduce)
    return made


def make_buckets(*widths: int) -> tuple[SlowGroup, list[TorchSlot], list[AllreduceSyncer]]:
    """Return buckets of 4 KB, with a small first one, for parameters of these widths; the last one has no gradient."""
    group = SlowGroup()
    group.configure(sizes=Sizes(smallest=1024, largest=1024))
    parameters = [nn.Parameter(torch.zeros(width)) for width in widths]
    for number, parameter in enumerate(parameters[:-1]):
        parameter.grad = torch.full_like(parameter, number + 1.0)
    slots = [TorchSlot(f"p{number}", each, HostCopier(), is_sparse=False) for number, each in enumerate(parameters)]
    return group, slots, AllreduceBuckets(group, "torch's", slots, range(len(slots))).syncers


def begin(syncers: list[AllreduceSyncer]) -> list[Completion]:
    completions = [Completion(syncer.answers, syncer.members) for syncer in syncers]
    for syncer, completion in zip(syncers, completions, strict=True):
        syncer.begin(completion, [])
    return completions


def test_the_mean_arrives_except_where_no_worker_has_a_gradient(collectives: Collectives) -> None:
    group, slots, [syncer] = make_buckets(3, 5, 2)
    [completion] = begin([syncer])
    for index in syncer.members:
        assert not collectives.called
        syncer.send(index, None)
    assert not group.open_work.is_done
    collectives.end()
    assert completion.is_done
    assert group.open_work.is_done
    for index in syncer.members:
        syncer.land(index)
    assert [None if slot.parameter.grad is None else slot.parameter.grad[0].item() for slot in slots] == [
        1.0,
        2.0,
        None,
    ]


def test_buckets_are_called_in_one_order_whichever_fills_first(collectives: Collectives) -> None:
    _, _, syncers = make_buckets(100, 2000, 10)
    assert [list(syncer.members) for syncer in syncers] == [[0], [1], [2]]
    completions = begin(syncers)
    syncers[2].send(2, None)
    syncers[1].send(1, None)
    assert not collectives.called
    syncers[0].send(0, None)
    assert [memory.numel() for memory, _ in collectives.called] == [101, 2001, 11]
    collectives.end(1)
    assert [completion.is_done for completion in completions] == [False, True, False]


def test_a_sum_that_fails_is_an_error_of_the_group(collectives: Collectives) -> None:
    group, _, [syncer] = make_buckets(3, 2)
    [completion] = begin([syncer])
    for index in syncer.members:
        syncer.send(index, None)
    collectives.called[0][1].set_exception(RuntimeError("connection reset"))
    assert not completion.is_done
    assert "torch's all_reduce failed: connection reset" in str(group.error)
    assert group.open_work.is_done


def test_a_bucket_is_reused_in_every_pass(collectives: Collectives) -> None:
    _, slots, [syncer] = make_buckets(3, 2)
    for number in range(3):
        begin([syncer])
        for index in syncer.members:
            syncer.send(index, None)
        collectives.end(number)
        for index in syncer.members:
            syncer.land(index)
    assert slots[0].parameter.grad is not None
    assert slots[0].parameter.grad.tolist() == [1.0] * 3
