"""Every scheme gives the same parameters, with the same bits on all ranks and in all runs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import undertow
from tests.support.workers import run_workers
from undertow.torch import DistributedDataParallel, flush, parallelize, verify_replicas

LIMITS = {"UNDERTOW_SMALLEST_SLICE": "1024", "UNDERTOW_LARGEST_SLICE": "16384"}
STEPS = 25
WORDS, TOKENS = 100, 4
OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": functools.partial(torch.optim.Adam, lr=1e-3, weight_decay=1e-3),
}
LINEAR = {"layers.0.weight", "layers.2.weight", "layers.4.weight"}
PLANS: dict[str, set[str] | None] = {
    "factors": LINEAR,
    "factors-to-shard": LINEAR,
    "rows": {"words.weight", "bags.weight"},
    "poseidon": LINEAR,
    "auto": None,  # whatever it measures as fastest
}


class Reader(nn.Module):
    """A net of words and bags of words, which uses each layer at every position."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, 48, padding_idx=0)
        self.bags = nn.EmbeddingBag(WORDS, 48, mode="mean")
        self.layers = nn.Sequential(
            nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 40)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(self.words(tokens) + self.bags(tokens)[:, None])
        return outputs


def make_batch(step: int, rank: int) -> torch.Tensor:
    # The number of rows differs between ranks and, sometimes, between steps.
    rows = 2 + rank + (step % 7 == 0)
    return torch.randint(WORDS, (rows, TOKENS), generator=torch.Generator().manual_seed(10 * step + rank))


def train(
    rank: int, plan: str, optimizer_name: str, *, overlaps: bool
) -> tuple[dict[str, torch.Tensor], str, set[str]]:
    """Return the parameters, their digest on all ranks, and the names of those sent as factors."""
    net = Reader()
    optimizer = OPTIMIZERS[optimizer_name](net.parameters())
    model: Any = parallelize(net, optimizer, plan=plan)[0] if overlaps else DistributedDataParallel(net, plan=plan)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(make_batch(step, rank)).square().mean().backward()
        optimizer.step()
    flush(model)
    digest = verify_replicas(net)
    parts = {one.name(index) for one in model._synchroniser._gradients for index in one._factored}
    undertow.barrier()
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}, digest, parts


def train_all(rank: int, optimizer_name: str, plans: Sequence[str], variants: Sequence[bool]) -> dict[str, str]:
    """Compare every plan with the dense one; return what must be the same in every run."""
    expected, dense, none = train(rank, "dense", optimizer_name, overlaps=False)
    assert not none
    initial = Reader().state_dict()
    digests = {"dense": dense}
    for plan in plans:
        for overlaps in variants:
            parameters, digest, parts = train(rank, plan, optimizer_name, overlaps=overlaps)
            assert PLANS[plan] in (None, parts), f"{plan}: {parts}"
            for name, tensor in parameters.items():
                moved = (expected[name] - initial[name]).norm()
                assert (tensor - expected[name]).norm() < 1e-4 * moved, f"{plan}: {name}"
                torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6, msg=f"{plan}: {name}")
            if PLANS[plan] is not None:
                assert digests.setdefault(plan, digest) == digest, f"{plan}: the two APIs differ"
    return digests


@pytest.mark.parametrize(("optimizer_name", "plans"), [("sgd", list(PLANS)), ("adam", ["factors", "rows"])])
def test_every_scheme_equals_dense_with_both_apis(optimizer_name: str, plans: list[str]) -> None:
    first, second = run_workers(2, train_all, optimizer_name, plans, [False, True], environment=LIMITS)
    assert first == second


def test_all_ranks_and_two_runs_have_the_same_bits() -> None:
    plans = ["factors", "factors-to-shard", "rows"]
    digests = [
        digest
        for over_tcp in (False, True)
        for digest in run_workers(3, train_all, "sgd", plans, [over_tcp], environment=LIMITS, over_tcp=over_tcp)
    ]
    assert all(digest == digests[0] for digest in digests)


def train_alone(rank: int, plan: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Train on two workers, and on all their batches in one process."""
    together, _, _ = train(rank, plan, "sgd", overlaps=False)
    net = Reader()
    optimizer = OPTIMIZERS["sgd"](net.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [net(make_batch(step, rank)).square().mean() for rank in range(2)]
        torch.stack(losses).mean().backward()
        optimizer.step()
    return together, {name: tensor.clone() for name, tensor in net.state_dict().items()}


@pytest.mark.parametrize("plan", ["factors", "factors-to-shard", "rows"])
def test_workers_equal_one_process_on_all_their_batches(plan: str) -> None:
    for together, alone in run_workers(2, train_alone, plan, environment=LIMITS):
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
