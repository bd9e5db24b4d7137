"""Wait-free backpropagation made visible: a model whose backward waits for a mean, and what the recorder saw of it."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from tests.support.workers import HANG_S
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
