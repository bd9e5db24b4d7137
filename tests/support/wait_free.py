"""A model whose backward waits for a mean, which makes wait-free backpropagation visible."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from tests.support.step_events import has_result, list_events
from tests.support.workers import HANG_S

WIDTH = 300  # a layer's weight is large enough for slices of its own


class Barrier(torch.autograd.Function):
    """A function whose backward waits until a mean has arrived, which can only be the last layer's."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        pause = threading.Event()
        for _ in range(int(HANG_S * 50)):
            if has_result():
                return gradient
            pause.wait(0.01)
        raise AssertionError(f"no result while backward waits: {list_events()}")


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(Barrier.apply(self.first(inputs)))
