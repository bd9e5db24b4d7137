"""`parallelize` gives the bits of `DistributedDataParallel`: early work uses the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.networks import NETWORKS
from tests.support.workers import run_workers
from undertow.torch import DistributedDataParallel, parallelize, verify_replicas
from undertow.torch.pending.pending_tensors import find_gate

STEPS = 25
# Many slices, few of them in flight: gates stay closed for a while.
SLOW = {"UNDERTOW_SLICE": "1024", "UNDERTOW_CREDIT": "4096"}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=1e-3),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, amsgrad=True, foreach=True),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.005, momentum=0.5, centered=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.02, lr_decay=0.01),
}


def make_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return groups with no weight decay and another rate for one-dimensional parameters."""
    flat = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    rest = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    return [{"params": rest}, {"params": flat, "weight_decay": 0.0, "lr": 0.003}]


def train(rank: int, network: str, name: str, *, overlaps: bool) -> tuple[dict[str, torch.Tensor], int]:
    """Return the trained state, and how often a parameter had to wait for its update."""
    torch.manual_seed(0)
    module = NETWORKS[network]()
    optimizer = OPTIMIZERS[name](make_groups(module))
    before = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)  # patches step()
    model: nn.Module
    if overlaps:
        model, optimizer = parallelize(module, optimizer)
    else:
        model = DistributedDataParallel(module)
    after = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
    generator = torch.Generator().manual_seed(rank)
    waited = 0
    for step in range(STEPS):
        optimizer.zero_grad()
        if step % 5 == 4:
            with model.no_sync():  # type: ignore[operator]
                model(module.make_batch(generator), step).square().mean().backward()
        model(module.make_batch(generator), step).square().mean().backward()
        if step % 4 == 1:
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        waited += sum(find_gate(parameter) is not None for parameter in module.parameters())
        before.step()
        after.step()
        if step == 12:
            optimizer.load_state_dict(optimizer.state_dict())
    verify_replicas(nn.ParameterList(module.parameters()))  # buffers follow at the next forward
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}, waited


def train_both(rank: int, network: str, names: list[str]) -> dict[str, int]:
    """Return how often this rank had to wait with each optimizer."""
    waits = {}
    for name in names:
        plain, none = train(rank, network, name, overlaps=False)
        early, waits[name] = train(rank, network, name, overlaps=True)
        assert none == 0
        different = [key for key in plain if not torch.equal(plain[key], early[key])]
        assert not different, f"{network} with {name}: {different}"
    return waits


def check_both(workers: int, network: str, names: list[str], **options: Any) -> None:
    waits = run_workers(workers, train_both, network, names, environment=SLOW, **options)
    for name in names:
        # A rank that the machine delays does not wait, but the others wait for it.
        assert sum(waited[name] for waited in waits) > STEPS, f"{name}: nothing was ever late: this shows nothing"


@pytest.mark.parametrize("network", NETWORKS)
def test_parameters_are_the_same_bit_by_bit(network: str) -> None:
    check_both(2, network, list(OPTIMIZERS))


def test_parameters_are_the_same_bit_by_bit_with_four_workers_over_tcp() -> None:
    check_both(4, "Mlp", ["adam"], over_tcp=True)
