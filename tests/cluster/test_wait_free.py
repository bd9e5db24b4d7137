"""Wait-free backpropagation (Poseidon): verified with trace events, not with a clock."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

import undertow
from tests.support.workers import HANG_S, on_workers
from undertow.torch import DistributedDataParallel
from undertow.tracing import events
from undertow.tracing.recorder import process_recorder

WIDTH = 300  # a layer's weight is large enough for slices of its own


class Barrier(torch.autograd.Function):
    """A function whose backward waits until the last layer's mean has arrived."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        pause = threading.Event()
        for _ in range(int(HANG_S * 50)):
            if ("result", first_key()) in happened():
                return gradient
            pause.wait(0.01)
        raise AssertionError(f"no result while backward waits: {happened()}")


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(Barrier.apply(self.first(inputs)))


def happened() -> list[tuple[str, Any]]:
    """Return the events of gradients and slices in chronological order."""
    told: list[tuple[float, str, Any]] = []
    for note in process_recorder.events():
        match note:
            case events.Hooked(began_s, _, tensor):
                told.append((began_s, "gradient", tensor))
            case events.Pushed(time_s, key):
                told.append((time_s, "push", key))
            case events.Answered(time_s, key):
                told.append((time_s, "result", key))
    return [(event, what) for _, event, what in sorted(told)]


def first_key() -> Any:
    """Return the key of the slice that was pushed first."""
    return next((what for event, what in happened() if event == "push"), None)


@on_workers(2)
def test_the_last_layers_mean_arrives_before_the_first_layers_gradient_exists(rank: int) -> None:
    model = DistributedDataParallel(Stack())
    undertow.barrier()  # transfers of the start are complete
    process_recorder.start()
    model(torch.full((1, WIDTH), float(rank))).sum().backward()
    process_recorder.stop()
    order = happened()
    last = [("gradient", "last.weight"), ("push", first_key()), ("result", first_key())]
    assert sorted(map(order.index, last)) == [order.index(event) for event in last]
    assert order.index(last[-1]) < order.index(("gradient", "first.weight"))


@on_workers(2, environment={"UNDERTOW_WAIT_FREE": "off"})
def test_without_wait_free_nothing_is_sent_before_backward_has_ended(rank: int) -> None:
    reached_the_end = []
    first = nn.Linear(WIDTH, WIDTH, bias=False)
    model = DistributedDataParallel(nn.Sequential(first, nn.Linear(WIDTH, WIDTH, bias=False)))
    undertow.barrier()
    # A parameter's own hook runs before ours: all that is pushed by then was pushed during backward.
    first.weight.register_post_accumulate_grad_hook(lambda _: reached_the_end.append(list(happened())))
    process_recorder.start()
    model(torch.full((1, WIDTH), float(rank))).sum().backward()
    process_recorder.stop()
    assert [event for event, _ in reached_the_end[0]] == []
    assert {event for event, _ in happened()} == {"gradient", "push", "result"}
    expected = torch.full((WIDTH, WIDTH), 0.5) * model.module[1].weight.sum(0)[:, None]
    torch.testing.assert_close(first.weight.grad, expected)
