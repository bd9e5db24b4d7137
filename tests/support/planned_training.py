"""Planned training, compared with a model that sees the batches of all ranks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from undertow.plan.plan import Plan
from undertow.plan.replanner import PASSES
from undertow.torch import DistributedDataParallel, flush, parallelize, verify_replicas

LIMITS = {"UNDERTOW_SMALLEST_SLICE": "1024", "UNDERTOW_LARGEST_SLICE": "16384"}
BATCH = 8
MANY = 300  # rows with which 64 x 64 is cheaper as a dense gradient
# Reported in pass 4, planned in the next, used in the one after that.
PLANNED, USED = PASSES + 1, PASSES + 2
MATRICES = ["0.weight", "2.weight", "3.weight"]


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 64))


def make_batch(rank: int, number: int, size: int = BATCH) -> torch.Tensor:
    return torch.randn(size, 64, generator=torch.Generator().manual_seed(1000 * number + rank))


def find_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


class Training:
    """A model on this rank, and a plain one that sees the batches of all ranks."""

    def __init__(self, rank: int, size: int, net: nn.Module | None = None, *, overlaps: bool = False, **options: Any):
        self.rank, self.size = rank, size
        self.net = net or make_net()
        self.plain = copy.deepcopy(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.plain_optimizer = torch.optim.SGD(self.plain.parameters(), lr=0.1)
        self.passes = 0
        if overlaps:
            self.model, _ = parallelize(self.net, self.optimizer, **options)
        else:
            self.model = DistributedDataParallel(self.net, **options)

    def run(self, passes: int = 1, batch: int = BATCH, *, accumulates: bool = False) -> None:
        for _ in range(passes):
            self.passes += 1
            self.optimizer.zero_grad()
            if accumulates:
                with self.model.no_sync():
                    find_loss(self.model, make_batch(self.rank, -self.passes, batch)).backward()
            find_loss(self.model, make_batch(self.rank, self.passes, batch)).backward()
            self.optimizer.step()
            numbers = [-self.passes, self.passes] if accumulates else [self.passes]
            self._step_plain([make_batch(rank, number, batch) for rank in range(self.size) for number in numbers])

    def join(self, counts: Sequence[int]) -> None:
        """Train with uneven inputs: `counts` passes per rank."""
        with self.model.join():
            for number in range(counts[self.rank]):
                self.optimizer.zero_grad()
                find_loss(self.model, make_batch(self.rank, 500 + number)).backward()
                self.optimizer.step()
        for number in range(max(counts)):
            self._step_plain([make_batch(rank, 500 + number) for rank in range(self.size) if number < counts[rank]])

    def _step_plain(self, batches: Sequence[torch.Tensor]) -> None:
        self.plain_optimizer.zero_grad()
        for batch in batches:
            (find_loss(self.plain, batch) / self.size).backward()
        self.plain_optimizer.step()

    def check(self) -> None:
        """Check that all replicas are equal to each other and to one process."""
        flush(self.model)
        verify_replicas(nn.ParameterList(self.net.parameters()))
        for ours, theirs in zip(self.net.parameters(), self.plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)

    @property
    def planning(self) -> Any:
        assert self.model._synchroniser is not None
        return self.model._synchroniser.planning

    @property
    def plan(self) -> Plan | None:
        plan: Plan | None = self.planning.plan
        return plan

    @property
    def in_parts(self) -> list[str]:
        """Return the tensors that the next pass sends as factors, if no plan changes in it."""
        return sorted(
            gradients.name(index)
            for gradients in self.planning._tables
            for index in range(len(gradients.parameters))
            if gradients.takes_factors(index, now=False)
        )

    @property
    def slice_bytes(self) -> int:
        table = self.planning._tables[0].table
        return max(item.spec.size_bytes for item in table.current.slices)


def say_plan(plan: Plan | None) -> bytes:
    return b"" if plan is None else plan.to_json()
