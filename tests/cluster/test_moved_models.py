"""Linear layers on a device where factors are not exact: planned as dense, also if they are moved there later."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from logging.handlers import BufferingHandler

import torch
from torch import nn

from tests.support.planned_training import LIMITS, MATRICES, USED, Training, make_net
from tests.support.workers import run_workers
from undertow.plan.replanner import PASSES
from undertow.plan.scheme import Scheme
from undertow.torch.factors import devices

REASON = "factors and factors-to-shard are not exact on meta yet, only on the CPU"


def move(net: nn.Module, names: Sequence[str]) -> None:
    """Make these appear to be on another device, although they can still be used in computations."""
    moved = {net.get_parameter(name) for name in names}
    devices.find_device = lambda weight: torch.device("meta" if weight in moved else "cpu")


def list_reasons(training: Training) -> dict[str, str]:
    assert training.plan is not None
    return {choice.tensor: choice.reason for choice in training.plan.choices if choice.tensor in MATRICES}


def train(rank: int) -> list[str]:
    """Train with Poseidon's rule, which sends all matrices as factors where possible."""
    handler = BufferingHandler(100)
    logging.getLogger("undertow").addHandler(handler)

    # Before it is wrapped.
    net = make_net()
    move(net, MATRICES)
    training = Training(rank, 2, net, plan="poseidon")
    training.run(USED)
    assert list_reasons(training) == dict.fromkeys(MATRICES, REASON)
    assert training.in_parts == []
    training.check()

    # Afterwards, on one of the ranks, in the middle of the training.
    training = Training(rank, 2, plan="poseidon")
    training.run(USED)
    assert training.in_parts == MATRICES
    move(training.net, ["2.weight"] if rank == 1 else [])
    training.run(1)
    training.check()
    training.run(2 * PASSES)
    assert training.plan is not None
    assert training.plan.schemes["2.weight"] is Scheme.DENSE
    assert list_reasons(training)["2.weight"] == REASON
    assert training.in_parts == ["0.weight", "3.weight"]
    training.check()
    return [record.getMessage() for record in handler.buffer if "whole" in record.getMessage()]


def test_a_model_on_another_device_is_planned_as_dense_with_the_reason() -> None:
    said, *others = run_workers(2, train, environment=LIMITS)
    assert said == [f"the gradients of '0.weight', '2.weight' and '3.weight' are sent whole: {REASON}"]
    assert others == [[]]
