"""Trace events of a training loop: passes, layers, and steps of optimizers.

In: a module that is trained; the beginning and end of each pass.  Out: trace events, while the recorder is on.
Hooks before and after layers are added only if the recorder is on when the module is wrapped.  Nothing is added to
autograd's graph: a layer's backward is recognised by its gradients.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from undertow.torch.modules.forwards import find_readers
from undertow.torch.modules.hooks import ForwardHook
from undertow.tracing import events
from undertow.tracing.recorder import process_recorder

_models = itertools.count()


class PassRecorder:
    """Recorder of one model's passes, which it numbers."""

    def __init__(self) -> None:
        self._model = next(_models)
        self._number = 0

    def start_forward(self) -> None:
        if process_recorder.is_on:
            process_recorder.record(events.ForwardBegan(process_recorder.clock(), self._model))

    def begin(self) -> None:
        self._number += 1
        if process_recorder.is_on:
            process_recorder.record(events.PassBegan(process_recorder.clock(), self._model, self._number))

    def end(self) -> None:
        if process_recorder.is_on:
            process_recorder.record(events.PassEnded(process_recorder.clock(), self._model, self._number))


def record_layers(module: torch.nn.Module) -> None:
    """Start to record every forward of a layer with parameters, if the recorder is on."""
    if not process_recorder.is_on:
        return
    names = {part: name for name, part in module.named_modules()}
    for reader, parameters in find_readers(module):
        if parameters:
            layer = _Layer(names.get(reader, "") or type(reader).__name__)
            # After the hooks that wait for the weights, because a wait does not belong to the layer.
            reader.register_forward_pre_hook(layer)
            reader.register_forward_hook(layer, always_call=True)
    _record_optimizers()


class _Layer(ForwardHook):
    """The hook before and after a layer's forward, which keeps its start time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._began_s: list[float] = []  # of each running forward, because a layer may be used inside itself

    def __call__(self, module: torch.nn.Module, inputs: Any, *outputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if outputs:  # after the forward
            if self._began_s:
                process_recorder.record(events.Forward(self._began_s.pop(), process_recorder.clock(), self._name))
        elif process_recorder.is_on and torch.is_grad_enabled():
            self._began_s.append(process_recorder.clock())


@functools.cache
def _record_optimizers() -> None:
    began_s: dict[int, float] = {}

    def begin(optimizer: torch.optim.Optimizer, args: Any, options: Any) -> None:
        if process_recorder.is_on:
            began_s[id(optimizer)] = process_recorder.clock()

    def end(optimizer: torch.optim.Optimizer, args: Any, options: Any) -> None:
        since_s = began_s.pop(id(optimizer), None)
        if since_s is not None and process_recorder.is_on:
            process_recorder.record(events.Stepped(since_s, process_recorder.clock(), type(optimizer).__name__))

    register_optimizer_step_pre_hook(begin)
    register_optimizer_step_post_hook(end)
