"""Gradients that the next forward pass of a model needs first are sent first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.support.slow_group import SlowGroup, slow_group
from undertow.plan.slice_plan import PLACES
from undertow.settings import Priority
from undertow.torch import parallelize

BATCH = torch.ones(2, 4)


class Steered(nn.Module):
    """Layers used in the order that a test gives.  They are identified by their size: 16, 32, 48 elements."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4 * times, bias=False) for times in (1, 2, 3))

    def forward(self, inputs: torch.Tensor, *order: int, in_checkpoints: bool = False) -> torch.Tensor:
        total = torch.zeros(())
        for index in order:
            outputs = checkpoint(self.layers[index], inputs, use_reentrant=False) if in_checkpoints else None
            total = total + (self.layers[index](inputs) if outputs is None else outputs).sum()
        return total


def make_model(group: SlowGroup, module: nn.Module | None = None) -> Any:
    module = module or Steered()
    model, _ = parallelize(module, torch.optim.SGD(module.parameters(), lr=0.1))
    group.deliver_all()
    return model


def sent(group: SlowGroup) -> dict[int, int]:
    """Return the number of elements sent with each priority since the last call."""
    elements: Counter[int] = Counter()
    for contribution in group.pending:
        assert contribution.target is not None
        elements[contribution.priority % PLACES] += len(contribution.target)
    group.deliver_all()
    return dict(elements)


def test_the_layer_used_first_is_sent_first(group: SlowGroup) -> None:
    model = make_model(group)
    model(BATCH, 2, 0, 1).backward()
    assert sent(group) == {0: 48, 1: 16, 2: 32}


def test_a_graph_that_changes_is_followed(group: SlowGroup) -> None:
    model = make_model(group)
    for order in ((0, 1, 2), (1, 2, 0), (2, 1, 0)):
        model(BATCH, *order).backward()
        assert sent(group) == {place: 16 * (index + 1) for place, index in enumerate(order)}


def test_the_first_use_of_a_layer_counts(group: SlowGroup) -> None:
    model = make_model(group)
    model(BATCH, 1, 0, 1, 2, 0).backward()
    assert sent(group) == {0: 32, 1: 16, 2: 48}


def test_the_first_use_of_a_tied_weight_counts(group: SlowGroup) -> None:
    module = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False), nn.Linear(4, 8, bias=False))
    module[2].weight = module[0].weight
    model = make_model(group, module)
    model(BATCH).sum().backward()
    assert sent(group) == {0: 32, 1: 32}


def test_weights_of_one_layer_are_consecutive(group: SlowGroup) -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 16))
    model = make_model(group, module)
    model(BATCH).sum().backward()
    assert sent(group) == {0: 32, 1: 8, 2: 128, 3: 16}


def test_an_evaluation_does_not_change_the_order(group: SlowGroup) -> None:
    model = make_model(group)
    with torch.no_grad():
        model(BATCH, 2, 1, 0)
    model(BATCH, 1, 0, 2).backward()
    assert sent(group) == {0: 32, 1: 16, 2: 48}


def test_an_unused_parameter_keeps_its_position(group: SlowGroup) -> None:
    model = make_model(group)
    model(BATCH, 2, 1, 0).backward()
    sent(group)
    model(BATCH, 2, 1).backward()
    assert sent(group) == {0: 48, 1: 32, 2: 16}
    model(BATCH, 2).backward()
    assert sent(group) == {0: 48, 1: 32, 2: 16}


def test_initial_positions_are_those_in_the_module(group: SlowGroup) -> None:
    model = make_model(group)
    model(BATCH, 0).backward()
    assert sent(group) == {0: 16, 1: 32, 2: 48}


def test_tiny_gradients_in_one_slice_are_as_urgent_as_the_first_of_them() -> None:
    with slow_group(slice_bytes=4096) as group:
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model = make_model(group, module)
        model(torch.ones(1, 2)).sum().backward()
        assert sent(group) == {0: 12}


def test_recomputation_in_backward_does_not_change_the_order(group: SlowGroup) -> None:
    model = make_model(group)
    for _ in range(3):
        model(BATCH, 0, 1, 2, in_checkpoints=True).backward()
        assert sent(group) == {0: 16, 1: 32, 2: 48}


def test_without_priorities_all_gradients_are_equally_urgent(group: SlowGroup) -> None:
    group.configure(priority=Priority.OFF)
    model = make_model(group)
    model(BATCH, 2, 0, 1).backward()
    assert sent(group) == {0: 96}


def test_the_rest_of_a_pass_is_sent_before_the_next_pass(group: SlowGroup) -> None:
    """Even of another model: otherwise a rank that is ahead delays the answers that others wait for."""
    models = [make_model(group), make_model(group)]
    latest = 0
    for model in (models[0], models[0], models[1], models[0]):
        model(BATCH, 2, 0, 1).backward()
        urgencies = [contribution.priority for contribution in group.pending]
        assert min(urgencies) > latest
        latest = max(urgencies)
        group.deliver_all()
