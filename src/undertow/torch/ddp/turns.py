"""Crossover in a training process, which computes only while its job has the turn.

In: a wrapped module whose job shares its device.  Out: the turn is taken before the first layer computes, handed over
between two layers if another job has precedence, and given back at the end of backward.  Waiting for the network also
gives it back.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from undertow.crossover.client import TurnClient
from undertow.engine.interface import Group
from undertow.runtime import sharing
from undertow.torch.modules.forwards import find_readers, find_tensors
from undertow.torch.modules.hooks import EagerHook, never_compiled
from undertow.torch.slots.device import find_free_bytes, name_device, synchronise

# Beyond its parameters, which are allocated already, training needs a gradient and two moments for each of them.
GROWTH = 3


class TurnHooks:
    """Hooks that take and give the turn around the forward and backward passes of one wrapped module."""

    def __init__(self, module: torch.nn.Module, turn: TurnClient) -> None:
        self.turn = turn
        self.begin_forward = never_compiled(turn.take)
        self._give = never_compiled(turn.give)
        for reader, parameters in find_readers(module):
            if parameters:  # before each layer, another job may go first
                reader.register_forward_pre_hook(EagerHook(lambda module, inputs: turn.make_way()))
        _watch_optimizers()

    def compute(self, module: torch.nn.Module, inputs: Any, kwargs: Any) -> Any:
        try:
            outputs = module(*inputs, **kwargs)
        except BaseException:
            self._give()  # other jobs must not wait for whatever a script that catches the exception does next
            raise
        self.end_forward(outputs)
        return outputs

    @never_compiled
    def end_forward(self, outputs: Any) -> None:
        """Keep the turn for the backward pass, if one can follow; else give it back."""
        differentiable = [tensor for tensor in find_tensors(outputs) if tensor.grad_fn is not None]
        for tensor in differentiable:
            tensor.register_hook(self._begin_backward)  # type: ignore[no-untyped-call]
        if not differentiable:
            self.turn.give()

    def _begin_backward(self, gradient: torch.Tensor) -> None:
        self.turn.take()
        torch.autograd.Variable._execution_engine.queue_callback(_BackwardEnd(self.turn))


class _BackwardEnd:
    """The callback that gives the turn back.  If backward fails, autograd deletes it without calling it."""

    def __init__(self, turn: TurnClient) -> None:
        self._turn: TurnClient | None = turn

    def __call__(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.give()

    __del__ = __call__


def share_device(group: Group, module: torch.nn.Module) -> TurnHooks | None:
    """Return hooks that take turns, if the job shares its device; raises `ConfigError` if the arbiter refuses it."""
    parameters = list(module.parameters())
    if group.shape.sharing is None or not parameters:
        return None
    device = parameters[0].device
    turn = sharing.open_turn(
        group,
        name_device(device),
        growth_bytes=GROWTH * sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        free_bytes=find_free_bytes(device),
        synchronise=functools.partial(synchronise, device),
    )
    return None if turn is None else TurnHooks(module, turn)


@functools.cache
def _watch_optimizers() -> None:
    """Take the turn for every optimizer's step, which also computes on the device."""

    def begin(optimizer: torch.optim.Optimizer, args: Any, options: Any) -> None:
        if (turn := _find_turn(optimizer)) is not None:
            turn.begin_update()

    def end(optimizer: torch.optim.Optimizer, args: Any, options: Any) -> None:
        if (turn := _find_turn(optimizer)) is not None:
            turn.end_update()

    register_optimizer_step_pre_hook(begin)
    register_optimizer_step_post_hook(end)


def _find_turn(optimizer: torch.optim.Optimizer) -> TurnClient | None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            return sharing.find_turn(name_device(parameter.device))
    return None
