"""What is noted of a training loop: passes, layers, steps of optimizers.

In: a module that is trained, "a pass begins".  Out: notes, while anybody wants them.
Hooks in front of and behind layers are there only if the record was on when the module was wrapped.  Nothing is put
into autograd's graph: a layer's backward is told by the gradients that come of it.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from undertow.torch.hooks import ForwardHook
from undertow.torch.overlap import find_readers
from undertow.trace import notes
from undertow.trace.recorder import here

_models = itertools.count()


class PassNoting:
    """The passes of one model."""

    def __init__(self) -> None:
        self._model = next(_models)
        self._number = 0

    def start_forward(self) -> None:
        if here.is_on:
            here.note(notes.ForwardBegan(here.clock(), self._model))

    def begin(self) -> None:
        self._number += 1
        if here.is_on:
            here.note(notes.PassBegan(here.clock(), self._model, self._number))

    def end(self) -> None:
        if here.is_on:
            here.note(notes.PassEnded(here.clock(), self._model, self._number))


def note_layers(module: torch.nn.Module) -> None:
    """From now on every forward of a layer with parameters is noted, if anything is."""
    if not here.is_on:
        return
    names = {part: name for name, part in module.named_modules()}
    for reader, parameters in find_readers(module):
        if parameters:
            noting = _Layer(names.get(reader, "") or type(reader).__name__)
            # Behind the hooks that wait for the weights: a wait is no part of the layer.
            reader.register_forward_pre_hook(noting)
            reader.register_forward_hook(noting.end, always_call=True)
    _note_optimizers()


class _Layer(ForwardHook):
    def __init__(self, name: str) -> None:
        self._name = name
        self._began_s: list[float] = []  # of each forward that goes on: a layer may be used inside of itself
        self.end = _LayerEnd(self)

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling() and here.is_on and torch.is_grad_enabled():
            self._began_s.append(here.clock())

    def finish(self) -> None:
        if not torch.compiler.is_compiling() and self._began_s:
            here.note(notes.Forward(self._began_s.pop(), here.clock(), self._name))


class _LayerEnd(ForwardHook):
    def __init__(self, layer: _Layer) -> None:
        self._layer = layer

    def __call__(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        self._layer.finish()


@functools.cache
def _note_optimizers() -> None:
    began_s: dict[int, float] = {}

    def begin(optimizer: torch.optim.Optimizer, args: Any, options: Any) -> None:
        if here.is_on:
            began_s[id(optimizer)] = here.clock()

    def end(optimizer: torch.optim.Optimizer, args: Any, options: Any) -> None:
        since_s = began_s.pop(id(optimizer), None)
        if since_s is not None and here.is_on:
            here.note(notes.Stepped(since_s, here.clock(), type(optimizer).__name__))

    register_optimizer_step_pre_hook(begin)
    register_optimizer_step_post_hook(end)
