"""Buffers are copied from rank 0 before each training forward and before the first one after it, as in torch."""

from __future__ import annotations

import torch
from torch import nn

import undertow
import undertow.torch
from tests.support.workers import on_workers
from undertow.torch import DistributedDataParallel


class Counter(nn.Module):
    """A module whose forward adds its input to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("flag", torch.tensor(False))

    def forward(self, value: int) -> torch.Tensor:
        self.at_entry = int(self.seen[0])
        self.seen += value
        return self.weight.sum()


@on_workers(3)
def test_a_training_forward_starts_with_the_buffers_of_rank_0(rank: int) -> None:
    model = DistributedDataParallel(Counter())
    for step in range(4):
        model.module.flag.fill_(rank == 0)
        model(rank + 1).backward()
        assert model.module.at_entry == step  # rank 0 has added 1 each time
        assert int(model.module.seen[0]) == step + rank + 1
        assert bool(model.module.flag)


@on_workers(2)
def test_the_first_eval_forward_after_training_has_them_and_later_ones_are_local(rank: int) -> None:
    model = DistributedDataParallel(Counter())
    model(10 * rank + 1).backward()
    model.eval()
    with torch.no_grad():
        model(100)
        assert model.module.at_entry == 1
        if rank == 1:
            model(0)  # a second one needs no other rank
    model.train()
    # As in torch, a forward after one without gradients does not wait for rank 0 either.
    model(0).backward()
    assert model.module.at_entry == 101


@on_workers(2)
def test_batch_norm_statistics_are_those_of_rank_0(rank: int) -> None:
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    for _ in range(3):
        model(torch.randn(8, 4)).sum().backward()
    with torch.no_grad():
        model.eval()(torch.randn(8, 4))
    undertow.torch.verify_replicas(model)


@on_workers(2)
def test_without_broadcast_buffers_each_rank_keeps_its_own(rank: int) -> None:
    module = Counter()
    module.seen += 5 * rank
    model = DistributedDataParallel(module, broadcast_buffers=False)
    assert not model.broadcast_buffers
    for _ in range(2):
        model(rank).backward()
    assert int(module.seen[0]) == 7 * rank


@on_workers(2)
def test_without_forward_sync_buffers_they_are_copied_once(rank: int) -> None:
    module = Counter()
    module.seen += 5 * rank + 1
    model = DistributedDataParallel(module, forward_sync_buffers=False)
    for _ in range(2):
        model(rank).backward()
    assert int(module.seen[0]) == 1 + 2 * rank


@on_workers(2)
def test_a_reassigned_buffer_is_copied(rank: int) -> None:
    model = DistributedDataParallel(Counter())
    model.module.seen = torch.full((3,), 7 + rank)
    model(1).backward()
    assert model.module.at_entry == 7


@on_workers(2)
def test_buffers_that_grow_on_all_ranks_are_copied(rank: int) -> None:
    model = DistributedDataParallel(Counter())
    for size in (3, 5, 100_000, 2):
        model.module.seen = torch.full((size,), size + rank)
        model(0).backward()
        assert model.module.seen.tolist() == [size] * size


@on_workers(2)
def test_the_newer_argument_for_buffers_takes_precedence(rank: int) -> None:
    module = Counter()
    module.seen += rank + 1
    model = DistributedDataParallel(module, broadcast_buffers=False, forward_sync_buffers=True)
    assert model.forward_sync_buffers
    assert int(module.seen[0]) == 1


@on_workers(2)
def test_ignored_parameters_and_buffers_stay_local(rank: int) -> None:
    module = Counter()
    module.own = nn.Parameter(torch.full((2,), float(rank)))
    module.seen += rank
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["own", "seen"])
    model = DistributedDataParallel(module)
    (model(0) + rank * module.own.sum()).backward()
    assert (module.own == rank).all()
    assert (module.own.grad == rank).all()
    assert int(module.seen[0]) == rank


@on_workers(2)
def test_one_backward_may_follow_two_forwards_through_batch_norm(rank: int) -> None:
    """Siamese networks, contrastive losses and discriminators do so."""
    for overlaps in (False, True):
        torch.manual_seed(rank)
        inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
        model = undertow.torch.parallelize(inner, optimizer)[0] if overlaps else DistributedDataParallel(inner)
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.randn(8, 4)) - model(torch.randn(8, 4))).pow(2).sum().backward()
            optimizer.step()
        undertow.torch.flush(model)
        undertow.torch.verify_replicas(inner[0])
