"""Measures the time and the rows of each layer in a step without communication, for the planner.

In: calls when a module's forward begins, and when a gradient is ready.  Out: a `Profile`.
A layer's forward lasts until the next layer's begins; its backward lasts from the previous gradient to its own.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile
from undertow.torch.factors.layers import Layer, find_kind
from undertow.torch.gradient.allreduce import can_allreduce
from undertow.torch.modules.forwards import find_readers
from undertow.torch.modules.hooks import ForwardHook
from undertow.torch.slots.device import synchronise

# Passes of a survey: the first one warms up, the next ones are measured.
WARM_UP, MEASURED = 1, 2


class Survey:
    """A measurement of a module's first passes, which keeps the shortest times of each layer."""

    def __init__(self, module: torch.nn.Module, clock: Callable[[], float] = time.perf_counter) -> None:
        self._passes = 0
        self._clock = clock
        self._readers = list(find_readers(module))
        self._device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        self._owners: dict[torch.Tensor, torch.nn.Module] = {}
        for reader, parameters in self._readers:
            for parameter in parameters:
                self._owners.setdefault(parameter, reader)
        self._hooks: list[Any] = []
        self._order: dict[torch.nn.Module, None] = {}  # of first use
        self._forward_s: dict[torch.nn.Module, float] = {}
        self._backward_s: dict[torch.nn.Module, float] = {}
        self._running: dict[torch.nn.Module, float] = {}  # times in the current forward or backward
        self._current: torch.nn.Module | None = None
        self._since_s = 0.0

    @property
    def is_measuring(self) -> bool:
        """Whether the current or next pass is measured: nothing else may be in flight during it."""
        return WARM_UP <= self._passes < WARM_UP + MEASURED

    @property
    def is_over(self) -> bool:
        return self._passes >= WARM_UP + MEASURED

    def start_forward(self) -> None:
        self._unhook()
        if not self.is_measuring:
            return
        self._running = {}
        self._hooks = [
            reader.register_forward_pre_hook(_ForwardMark(self), prepend=True)
            for reader, parameters in self._readers
            if parameters
        ]
        self._charge(None)

    def use(self, module: torch.nn.Module) -> None:
        self._order.setdefault(module)
        self._charge(self._current, module)

    def start_backward(self) -> None:
        """Begin the backward pass: the forward pass and the loss have been computed."""
        self._unhook()
        if self.is_measuring:
            self._charge(self._current)
            self._keep(self._forward_s)

    def ready(self, parameter: torch.Tensor) -> None:
        if self.is_measuring and parameter in self._owners:
            self._charge(self._owners[parameter])

    def end_backward(self) -> None:
        if self.is_measuring:
            self._keep(self._backward_s)
        self._passes += 1

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def make_profile(
        self,
        names: Mapping[torch.Tensor, str],
        layers: Mapping[torch.Tensor, Layer],
        obstacles: Mapping[torch.Tensor, str],
    ) -> Profile:
        """Return layers in the order of use, unused ones last; rows are not known here."""
        readers = [*self._order, *(reader for reader, _ in self._readers if reader not in self._order)]
        profiles = []
        for reader in readers:
            own = [parameter for parameter, owner in self._owners.items() if owner is reader and parameter in names]
            if own:
                tensors = tuple(_profile_tensor(p, names[p], reader, layers.get(p), obstacles) for p in own)
                profiles.append(
                    LayerProfile(
                        name=tensors[0].name.rpartition(".")[0] or tensors[0].name,
                        tensors=tensors,
                        forward_s=self._forward_s.get(reader, 0.0),
                        backward_s=self._backward_s.get(reader, 0.0),
                    )
                )
        return Profile(layers=tuple(profiles))

    def _charge(self, module: torch.nn.Module | None, following: torch.nn.Module | None = None) -> None:
        """Charge the time since the last call to `module`; the following time may belong to `following`."""
        synchronise(self._device)
        now_s = self._clock()
        if module is not None:
            self._running[module] = self._running.get(module, 0.0) + now_s - self._since_s
        self._current, self._since_s = following, now_s

    def _keep(self, fastest_s: dict[torch.nn.Module, float]) -> None:
        for module, seconds in self._running.items():
            fastest_s[module] = min(seconds, fastest_s.get(module, seconds))
        self._running = {}


class _ForwardMark(ForwardHook):
    def __init__(self, survey: Survey) -> None:
        self._survey = survey

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._survey.use(module)


class RowCounter:
    """Counter of K, the rows per pass, for every layer that has rows."""

    def __init__(self) -> None:
        self._rows: dict[str, float] = {}
        self._passes = 0
        self._counted: set[str] = set()  # layers counted in a forward pass; recomputation in backward is not counted
        # An embedding's touched rows are counted in the first pass; later they are estimated from its tokens.
        self._touched: dict[str, float] = {}  # rows per token

    def watch(self, layer: Layer, name: str) -> None:
        layer.module.register_forward_pre_hook(_Count(self, layer.kind, layer.weight.shape[1], name), with_kwargs=True)

    def end_pass(self) -> None:
        self._passes += 1

    def take(self) -> dict[str, float]:
        """Return the rows of an average pass since the last call."""
        rows = {name: rows / max(1, self._passes) for name, rows in self._rows.items()}
        self._rows, self._passes, self._counted = {}, 0, set()
        return rows

    def count(self, kind: LayerKind, depth: int, name: str, input: torch.Tensor) -> None:
        if torch._C._current_graph_task_id() == -1:
            self._counted.add(name)
        elif name in self._counted:
            return
        rows = float(input.numel())
        if kind is LayerKind.LINEAR:
            rows /= max(1, depth)
        elif name in self._touched:
            rows *= self._touched[name]
        elif input.numel():
            rows = float(torch.unique(input).numel())
            self._touched[name] = rows / input.numel()
        self._rows[name] = self._rows.get(name, 0.0) + rows


class _Count(ForwardHook):
    """A forward pre-hook that counts rows.

    It must not refer to the module, or a discarded model would stay in memory until a garbage collection.
    """

    def __init__(self, counter: RowCounter, kind: LayerKind, depth: int, name: str) -> None:
        self._counter = weakref.ref(counter)
        self._kind = kind
        self._depth = depth
        self._name = name

    def __call__(self, module: torch.nn.Module, inputs: Any, options: Any) -> None:
        counter = self._counter()
        if counter is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        input = inputs[0] if inputs else options.get("input")
        if isinstance(input, torch.Tensor):
            counter.count(self._kind, self._depth, self._name, input)


def _profile_tensor(
    parameter: torch.Tensor,
    name: str,
    reader: torch.nn.Module,
    layer: Layer | None,
    obstacles: Mapping[torch.Tensor, str],
) -> TensorProfile:
    return TensorProfile(
        name=name,
        shape=tuple(parameter.shape),
        kind=find_kind(reader) if layer is None else layer.kind,
        itemsize=parameter.element_size(),
        row_itemsize=parameter.element_size(),
        can_reduce=can_allreduce(parameter) and not getattr(reader, "sparse", False),
        obstacle=obstacles.get(parameter, "") if layer is None else "",
        product_s=None if layer is None else layer.product_s,
    )
