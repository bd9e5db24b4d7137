"""The optimizer of a replayed model.

In: averaged gradients.  Out: moved parameters, at no cost: the published time of an
iteration includes the update, and the CPU must stay free for the network.  Only the first
elements of each tensor really move, enough to compare replicas with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

MOVED = 64


class ReplayedSGD(torch.optim.Optimizer):
    """Plain SGD on the first elements of every parameter."""

    def __init__(self, params: Iterable[torch.Tensor], lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.view(-1)[:MOVED].sub_(parameter.grad.view(-1)[:MOVED], alpha=group["lr"])
        return loss
