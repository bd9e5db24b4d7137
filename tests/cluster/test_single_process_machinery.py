"""An adopted model works like a wrapped one: wait-free, planned, compiled."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import undertow
from tests.support.planned_training import LIMITS, USED
from tests.support.single_process import flat, look_backwards, run
from tests.support.step_events import list_events
from tests.support.wait_free import WIDTH, Stack
from undertow.plan.scheme import Scheme
from undertow.tracing.recorder import process_recorder

STEPS = 12


def leave_early(rank: int) -> None:
    model = Stack()
    torch.optim.SGD(model.parameters(), lr=0.1)
    undertow.barrier()  # nothing that the start has sent is still in flight
    process_recorder.start()
    model(torch.full((1, WIDTH), float(rank))).sum().backward()
    process_recorder.stop()
    order = [what for _, what in list_events()]
    assert order.index("result") < order.index("first.weight")


def test_gradients_leave_while_backward_runs() -> None:
    run(2, leave_early)


def train(rank: int, size: int, calls_parts: bool) -> tuple[list[float], list[float], int]:
    """Train beside a copy that sees the batches of all ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    whole = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        if step == USED:
            flat(model)  # no gradient is in flight any more
            undertow.barrier()
            sent = undertow.bytes_sent()  # the measurements of the links are complete
        batches = [torch.randn(4, 64, generator=torch.Generator().manual_seed(size * step + r)) for r in range(size)]
        optimizer.zero_grad()
        outputs = model[2](model[1](model[0](batches[rank]))) if calls_parts else model(batches[rank])
        outputs.square().mean().backward()
        optimizer.step()
        whole.zero_grad()
        whole(torch.cat(batches)).square().mean().backward()
        with torch.no_grad():
            for parameter in whole.parameters():
                parameter -= 0.1 * parameter.grad
    undertow.barrier()
    return flat(model), flat(whole), undertow.bytes_sent() - sent


def train_twins(rank: int) -> tuple[list[float], int]:
    look_backwards(rank)
    torch.manual_seed(0)
    parts = nn.Linear(64, 64), nn.Linear(64, 64)
    used, unused = nn.Sequential(*parts), nn.Sequential(*parts)
    optimizer = torch.optim.SGD(unused.parameters(), lr=0.1)
    for step in range(STEPS):
        if step == USED:
            sent = undertow.bytes_sent()
        optimizer.zero_grad()
        used(torch.full((4, 64), rank + 1.0)).square().mean().backward()
        optimizer.step()
    undertow.barrier()
    return flat(used), undertow.bytes_sent() - sent


def test_modules_that_share_submodules_are_planned_on_all_ranks() -> None:
    sent = {}
    for plan in (Scheme.FACTORS.value, Scheme.DENSE.value):
        (first, bytes0), (second, bytes1) = run(2, train_twins, **LIMITS, UNDERTOW_PLAN=plan)
        assert first == second
        sent[plan] = bytes0 + bytes1
    assert sent["factors"] < 0.9 * sent["dense"]


@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize("calls_parts", [False, True])
def test_an_adopted_model_is_planned_and_exact(overlap: str, calls_parts: bool) -> None:
    """Without a forward of the whole module no plan is possible, but training is as exact."""
    sent = {}
    for plan in (Scheme.FACTORS.value, Scheme.DENSE.value):
        environment = {**LIMITS, "UNDERTOW_PLAN": plan, "UNDERTOW_OVERLAP": overlap}
        ranks = run(3, train, 3, calls_parts, **environment)
        assert ranks[0][0] == ranks[1][0] == ranks[2][0] == pytest.approx(ranks[0][1], abs=1e-6)
        sent[plan] = sum(rank[2] for rank in ranks)
    if calls_parts:
        assert sent["factors"] == pytest.approx(sent["dense"], rel=0.2)
    else:
        assert sent["factors"] < 0.9 * sent["dense"]


def compile_it(rank: int) -> list[float]:
    torch.manual_seed(0)
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((2, 4), rank + step / 10)).sum().backward()
        optimizer.step()
    return flat(model)


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_a_compiled_model(overlap: str) -> None:
    first, second = run(2, compile_it, UNDERTOW_OVERLAP=overlap)
    assert first == second
