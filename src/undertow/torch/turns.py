"""Crossover in a training process: computes only while its job has the turn.

In: a wrapped module whose job shares its device.  Out: the turn is taken before the first layer computes,
handed over between two layers if another job goes first, and given back at the end of backward; whoever waits
for the network in between does not keep it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from undertow.crossover.client import Turn
from undertow.runtime import sharing
from undertow.runtime.group import Group
from undertow.runtime.sharing import SharedDevice
from undertow.torch.device import find_free_bytes, name_device, synchronise
from undertow.torch.hooks import ForwardHook, never_compiled
from undertow.torch.overlap import find_readers
from undertow.torch.passes import find_tensors

# Taken for an optimizer's step.
_stepping: set[Turn] = set()
# Of a job that trains: a gradient and two moments for every parameter, which are there already.
GROWTH = 3


class Taking:
    """Of one wrapped module."""

    def __init__(self, module: torch.nn.Module, turn: Turn) -> None:
        self.turn = turn
        for reader, parameters in find_readers(module):
            if parameters:
                reader.register_forward_pre_hook(_MakeWay(turn))
        _watch_optimizers()

    @never_compiled
    def begin_forward(self) -> None:
        self.turn.take()

    def compute(self, module: torch.nn.Module, inputs: Any, kwargs: Any) -> Any:
        """The forward pass itself."""
        try:
            outputs = module(*inputs, **kwargs)
        except BaseException:
            self._give_up()
            raise
        self.end_forward(outputs)
        return outputs

    @never_compiled
    def _give_up(self) -> None:
        """Nobody knows what a script does that has caught this: others need not wait for it."""
        self.turn.give()

    @never_compiled
    def end_forward(self, outputs: Any) -> None:
        """If a backward pass follows it goes on with the turn."""
        leads_on = False
        for tensor in find_tensors(outputs):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._begin_backward)  # type: ignore[no-untyped-call]
                leads_on = True
        if not leads_on:
            self.turn.give()

    def _begin_backward(self, gradient: torch.Tensor) -> None:
        self.turn.take()
        torch.autograd.Variable._execution_engine.queue_callback(_End(self.turn))


class _End:
    """Of a backward pass.  Autograd does not call it if the pass fails, but lets go of it."""

    def __init__(self, turn: Turn) -> None:
        self._turn: Turn | None = turn

    def __call__(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.give()

    __del__ = __call__


def share_device(group: Group, module: torch.nn.Module) -> Taking | None:
    """Take turns if the job does.  Raises `ConfigError` if it is not admitted."""
    parameters = list(module.parameters())
    if group.sharing is None or not parameters:
        return None
    device = parameters[0].device
    turn = sharing.open_turn(
        group,
        SharedDevice(
            name=name_device(device),
            growth_bytes=GROWTH * sum(parameter.numel() * parameter.element_size() for parameter in parameters),
            free_bytes=find_free_bytes(device),
            synchronise=functools.partial(synchronise, device),
        ),
    )
    return None if turn is None else Taking(module, turn)


class _MakeWay(ForwardHook):
    """In front of a layer."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    @never_compiled
    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        self._turn.make_way()


@functools.cache
def _watch_optimizers() -> None:
    """A step computes on the device, too."""
    register_optimizer_step_pre_hook(lambda optimizer, args, options: _take(optimizer))
    register_optimizer_step_post_hook(lambda optimizer, args, options: _give(optimizer))


def _take(optimizer: torch.optim.Optimizer) -> None:
    turn = _find_turn(optimizer)
    if turn is not None and not turn.is_held:  # else it is somebody's who gives it back, such as a backward pass
        turn.take()
        _stepping.add(turn)


def _give(optimizer: torch.optim.Optimizer) -> None:
    turn = _find_turn(optimizer)
    if turn is not None and turn in _stepping:
        _stepping.discard(turn)
        turn.give()


def _find_turn(optimizer: torch.optim.Optimizer) -> Turn | None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            return sharing.find_turn(name_device(parameter.device))
    return None
