"""Nets whose gradients are sent as factors or rows, and dense ones to compare with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from undertow.plan.plan import Choice, Plan
from undertow.plan.scheme import Scheme
from undertow.torch import DistributedDataParallel, verify_replicas

WIDTH = 16
WORDS = 40
LIMITS = {"UNDERTOW_SMALLEST_SLICE": "1024", "UNDERTOW_LARGEST_SLICE": "16384"}
LINEAR = (Scheme.FACTORS, Scheme.FACTORS_TO_SHARD)
PASSES = 4  # a given plan takes effect in the third

Step = Callable[[nn.Module, int, int], Any]  # the wrapped model, the number of the pass, the rank
Seen = list[list[torch.Tensor | None]]  # the gradients after each pass, and at last the parameters


def plan_factors(net: nn.Module, linear: Scheme = Scheme.FACTORS) -> Plan:
    """Return a plan with factors and rows for all layers that can have them."""
    schemes: dict[str, Scheme] = {}
    for name, module in net.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.EmbeddingBag)):
            prefix = f"{name}." if name else ""
            schemes[f"{prefix}weight"] = linear if isinstance(module, nn.Linear) else Scheme.ROWS
    choices = tuple(
        Choice(
            tensor=name,
            shape=tuple(parameter.shape),
            scheme=schemes.get(name, Scheme.DENSE),
            bytes_out=4096.0,
            push_bytes=4096.0,
            alone_s=0.0,
            reason="",
        )
        for name, parameter in net.named_parameters()
    )
    return Plan(policy=linear.value, workers=2, choices=choices, step_s=0.0, compute_s=0.0, alone={})


def train(rank: int, make: Callable[[], nn.Module], step: Step, *, plan: Any, passes: int = PASSES) -> tuple[Any, Seen]:
    net = make()
    model = DistributedDataParallel(net, plan=plan(net) if callable(plan) else plan)
    seen: Seen = []
    for index in range(passes):
        step(model, index, rank)
        seen.append([copy_of(parameter.grad) for parameter in net.parameters()])
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.05 * parameter.grad)
    seen.append([copy_of(parameter) for parameter in net.parameters()])
    return model, seen


def copy_of(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().to_dense().clone()


def check(
    rank: int,
    make: Callable[[], nn.Module],
    step: Step,
    *,
    gathered: set[str] | None = None,
    wholes: set[str] | None = None,
    passes: int = PASSES,
    rtol: float = 1e-5,
) -> Any:
    """Check that factors and rows give the gradients of dense schemes in all passes, and that `gathered` used them."""
    _, expected = train(rank, make, step, plan="dense", passes=passes)
    has_linear = any(isinstance(module, nn.Linear) for module in make().modules())
    for linear in LINEAR if has_linear else LINEAR[:1]:
        model, seen = train(rank, make, step, plan=functools.partial(plan_factors, linear=linear), passes=passes)
        for index, (ours, theirs) in enumerate(zip(seen, expected, strict=True)):
            compare(ours, theirs, f"{linear.value}, pass {index}", rtol)
        found = find_gathered(model)
        assert gathered is None or found == gathered, found
        assert wholes is None or find_wholes(model) == wholes, find_wholes(model)
        if all(bool(tensor.isfinite().all()) for tensor in seen[-1] if tensor is not None):
            verify_replicas(model.module)
    return model


def compare(
    ours: Sequence[torch.Tensor | None], theirs: Sequence[torch.Tensor | None], where: str, rtol: float
) -> None:
    assert [one is None for one in ours] == [one is None for one in theirs], where
    for one, other in zip(ours, theirs, strict=True):
        if one is not None:
            torch.testing.assert_close(
                one, other, rtol=rtol, atol=rtol / 10, equal_nan=True, msg=lambda text: f"{where}: {text}"
            )


def find_gathered(model: Any) -> set[str]:
    return {one.name(index) for one in model._synchroniser._gradients for index in one._factored}


def find_wholes(model: Any) -> set[str]:
    return {name for one in model._synchroniser._gradients for name in one.find_wholes()}


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def words(*shape: int, seed: int, of: int = WORDS) -> torch.Tensor:
    return torch.randint(of, shape, generator=torch.Generator().manual_seed(seed))


def seed_of(index: int, rank: int) -> int:
    return 1000 + 10 * index + rank


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, 8))


ALL = {"0.weight", "2.weight"}


def make_words(**options: Any) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(WORDS, WIDTH, **options)


def batch(index: int, rank: int, rows: int = 5) -> torch.Tensor:
    return numbers(rows, WIDTH, seed=seed_of(index, rank))


def learn(model: nn.Module, index: int, rank: int) -> None:
    model.zero_grad()
    model(batch(index, rank)).square().sum().backward()
