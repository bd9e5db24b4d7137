"""Autograd lets gradients share memory, and users put hooks on them: the means are still right.

Parameters here are too large to be fused, so that they would be sent and received in place.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.step_events import has_result
from tests.support.workers import on_workers
from undertow.errors import ConfigError
from undertow.torch import DistributedDataParallel, verify_replicas
from undertow.tracing.recorder import process_recorder

ROWS, COLUMNS = 512, 512


class UntilResult(torch.autograd.Function):
    """A function whose backward waits for the first result, unless results only arrive after its end."""

    @staticmethod
    def forward(ctx: object, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        for _ in range(200):
            is_here = has_result()
            torch.randn(200, 200) @ torch.randn(200, 200)  # also after the result, which needs a moment to be copied
            if is_here:
                break
        return gradient.clone()


class AddsParameter(nn.Module):
    """A net in which the gradient of `shift` is a view of the one passed on to `linear`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shift = nn.Parameter(torch.zeros(ROWS, COLUMNS))
        self.linear = nn.Linear(COLUMNS, COLUMNS, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return UntilResult.apply(self.linear(inputs)) + self.shift.unsqueeze(0)


def loss_of(model: nn.Module, rank: int) -> torch.Tensor:
    inputs, weights = torch.randn(2, 1, ROWS, COLUMNS, generator=torch.Generator().manual_seed(rank))
    return (model(inputs) * weights).sum()


@on_workers(2)
def test_a_gradient_that_backward_still_uses_is_not_overwritten(rank: int) -> None:
    model = DistributedDataParallel(AddsParameter())
    process_recorder.start()
    loss_of(model, rank).backward()
    process_recorder.stop()
    alone = AddsParameter()
    ((loss_of(alone, 0) + loss_of(alone, 1)) / 2).backward()
    torch.testing.assert_close(model.module.linear.weight.grad, alone.linear.weight.grad, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(model.module.shift.grad, alone.shift.grad)


class AddsTwo(nn.Module):
    """A net in which the gradients of both parameters share memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(ROWS * COLUMNS))
        self.second = nn.Parameter(torch.zeros(ROWS * COLUMNS))

    def forward(self, factor: float) -> torch.Tensor:
        return (self.first.view(ROWS, -1) + self.second.view(ROWS, -1)) * factor


@on_workers(4)
def test_two_gradients_in_the_same_memory_are_both_right(rank: int) -> None:
    model = DistributedDataParallel(AddsTwo())
    for _ in range(3):
        model.zero_grad()
        model(float(rank + 1)).sum().backward()
        for parameter in model.parameters():
            assert (parameter.grad == 2.5).all()


def double(parameter: torch.Tensor) -> None:
    parameter.grad = parameter.grad * 2


def double_in_place(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(2)


@on_workers(2)
def test_a_hook_may_change_a_gradient_before_it_is_sent(rank: int) -> None:
    for change in (double, double_in_place):
        model = DistributedDataParallel(nn.Linear(COLUMNS, ROWS, bias=False))
        model.module.weight.register_post_accumulate_grad_hook(change)
        model(torch.full((1, COLUMNS), float(rank + 1))).sum().backward()
        assert (model.module.weight.grad == 3.0).all(), change


@on_workers(2)
def test_the_error_about_a_parameter_replaced_after_wrapping_names_it(rank: int) -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4)))
    model.load_state_dict(model.state_dict(), assign=True)
    with pytest.raises(ConfigError, match=r"parameter '0\.weight' was replaced"):
        model(torch.ones(1, 4))


class HasUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs)


@on_workers(2)
def test_two_wrappers_may_begin_in_any_order_in_one_backward(rank: int) -> None:
    torch.manual_seed(0)
    models = [DistributedDataParallel(HasUnused()) for _ in range(2)]
    inputs = torch.ones(2, 4)
    order = models if rank == 0 else models[::-1]
    for _ in range(3):
        torch.stack([model(inputs).sum() for model in order]).sum().backward()
    for model in models:
        assert model.module.unused.weight.grad is None
        verify_replicas(model)
