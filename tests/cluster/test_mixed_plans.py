"""All schemes side by side, including torch's process group, in an order that differs between ranks."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from tests.support.workers import hear, outcomes_of, run_workers, say, start_workers
from undertow.plan.plan import Plan
from undertow.plan.scheme import Scheme
from undertow.torch import DistributedDataParallel, flush, parallelize, plan_of, verify_replicas

SIZE, STEPS = 3, 16
SMALL = {"UNDERTOW_SMALLEST_SLICE": "1024", "UNDERTOW_LARGEST_SLICE": "16384"}


class Net(nn.Module):
    """A net with two optional branches, whose order the caller chooses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(300, 24)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 24)) for _ in range(2))
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, 4)

    def forward(self, tokens: torch.Tensor, order: list[int]) -> torch.Tensor:
        hidden = self.words(tokens)
        for index in order:
            hidden = hidden + self.branches[index](hidden)
        return self.head(self.norm(hidden))


MIXED = {
    "words.weight": Scheme.ROWS,
    "branches.0.0.weight": Scheme.FACTORS,
    "branches.0.2.weight": Scheme.FACTORS_TO_SHARD,
    "branches.1.0.weight": Scheme.ALLREDUCE,
    "branches.1.0.bias": Scheme.ALLREDUCE,
    "branches.1.2.weight": Scheme.DENSE,
    "norm.weight": Scheme.ALLREDUCE,
    "head.weight": Scheme.FACTORS_TO_SHARD,
}


def train(rank: int, plan: str | Plan, *, overlaps: bool, steps: int = STEPS) -> tuple[list[torch.Tensor], nn.Module]:
    """Train with branches in a different order on each rank; one rank sometimes uses only one branch."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    model: nn.Module = DistributedDataParallel(net, plan=plan)
    if overlaps:
        parallelize(model, optimizer)
    random = torch.Generator().manual_seed(rank)
    for step in range(steps):
        order = [0, 1] if (rank + step) % 2 else [1, 0]
        if rank == 1 and step % 5 == 4:
            order = [step % 2]
        optimizer.zero_grad()
        tokens = torch.randint(0, 300, (4 + rank, 6), generator=random)
        model(tokens, order).square().mean().backward()
        optimizer.step()
    flush(model)
    verify_replicas(net)
    return [parameter.detach().clone() for parameter in net.parameters()], model


def join_torch(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=SIZE)


def compare(rank: int, folder: str) -> None:
    join_torch(rank, folder)
    expected, _ = train(rank, "dense", overlaps=False)
    _, model = train(rank, "poseidon", overlaps=False)
    made = plan_of(model).plan
    mixed = msgspec.structs.replace(
        made,
        policy="mixed",
        choices=tuple(
            msgspec.structs.replace(choice, scheme=MIXED.get(choice.tensor, Scheme.DENSE)) for choice in made.choices
        ),
    )
    for plan in (mixed, "factors", "factors-to-shard", "rows", "allreduce"):
        # Two runs, one with each API: the same bits.
        first, _ = train(rank, plan, overlaps=False)
        second, _ = train(rank, plan, overlaps=True)
        for ours, again, theirs in zip(first, second, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
            assert torch.equal(ours, again)
    dist.destroy_process_group()


def test_mixed_plans_give_the_results_of_dense(tmp_path: Path) -> None:
    run_workers(SIZE, compare, str(tmp_path), environment=SMALL)


def train_until_lost(rank: int, folder: str) -> None:
    join_torch(rank, folder)
    train(rank, "allreduce", overlaps=True, steps=8)
    say("trained")
    hear()
    for _ in range(1000):
        train(rank, "allreduce", overlaps=True, steps=8)


def test_a_dead_worker_is_named_even_if_torch_sums(tmp_path: Path) -> None:
    crew = start_workers(SIZE, train_until_lost, str(tmp_path), environment=SMALL)
    for rank in range(SIZE):
        assert crew.heard(rank) == "trained"
    for rank in range(SIZE):
        crew.tell(rank, "go on")
    crew.send_signal(1, signal.SIGKILL)
    outcomes = crew.outcomes()
    assert [outcome.kind for outcome in outcomes] == ["PeerLost", "died", "PeerLost"], outcomes
    assert all("rank 1" in outcomes[rank].text for rank in (0, 2))


def refuse(rank: int) -> None:
    train(rank, "allreduce", overlaps=False, steps=8)


def test_without_a_process_group_the_plan_allreduce_is_refused() -> None:
    for outcome in outcomes_of(2, refuse, environment=SMALL):
        assert outcome.kind == "PlanError", outcome
        assert "init_process_group" in outcome.text
