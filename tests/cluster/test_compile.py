"""torch.compile around or inside the wrapper does not change results."""

from __future__ import annotations

import warnings

import torch
from torch import nn

import undertow
import undertow.torch
from tests.support.workers import on_workers
from undertow.torch import DistributedDataParallel


def make_module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


@on_workers(2)
def test_compiled_models_are_synchronised(rank: int) -> None:
    warnings.simplefilter("default")  # torch's own, many
    inputs = torch.arange(16.0).reshape(2, 2, 4) / 16
    alone = make_module()
    torch.stack([alone(part).sum() for part in inputs]).mean().backward()
    outside = DistributedDataParallel(make_module())
    inside = make_module()
    for module, model in (
        (outside.module, torch.compile(outside, backend="eager")),
        (inside, DistributedDataParallel(torch.compile(inside, backend="eager"))),
    ):
        for _ in range(2):
            model.zero_grad()
            model(inputs[rank]).sum().backward()
            for ours, theirs in zip(module.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad)
    undertow.barrier()


@on_workers(2)
def test_a_compiled_wrapper_is_compiled_once(rank: int) -> None:
    """Code that depends on one of our counters would be recompiled in every step, until torch gives up."""
    warnings.simplefilter("default")
    net = make_module()
    model = torch.compile(DistributedDataParallel(net), backend="eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    undertow.barrier()
