"""How long each layer computes, and on how many rows: a step without any network, as the planner wants it.

In: "this module's forward begins", "this gradient is ready".  Out: a `Profile`.
A layer's forward lasts until the next one begins, its backward from the gradient before to its own.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from undertow.plan.profile import Kind, LayerProfile, Profile, TensorProfile
from undertow.torch.device import synchronise
from undertow.torch.hooks import ForwardHook
from undertow.torch.layers import Layer, find_kind
from undertow.torch.overlap import find_readers
from undertow.torch.reduced import can_reduce

# Passes of a survey: the first one warms up, the next ones are measured.
WARM_UP, MEASURED = 1, 2


class Survey:
    """The first passes of a module, some of which are measured: of each layer's times the shortest count."""

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
        self._running: dict[torch.nn.Module, float] = {}  # of the forward or backward that goes on
        self._since: tuple[torch.nn.Module | None, float] = None, 0.0

    @property
    def is_measuring(self) -> bool:
        """Whether the pass that comes, or goes on, counts: nothing else must be on its way meanwhile."""
        return WARM_UP <= self._passes < WARM_UP + MEASURED

    @property
    def is_over(self) -> bool:
        return self._passes >= WARM_UP + MEASURED

    def start_forward(self) -> None:
        """A forward pass is about to begin."""
        self._unhook()
        if not self.is_measuring:
            return
        self._running = {}
        self._hooks = [
            reader.register_forward_pre_hook(_Mark(self), prepend=True)
            for reader, parameters in self._readers
            if parameters
        ]
        self._since = None, self._now()

    def use(self, module: torch.nn.Module) -> None:
        self._order.setdefault(module)
        self._note(module)

    def start_backward(self) -> None:
        """The forward pass is over, and so is whatever followed it."""
        self._unhook()
        if self.is_measuring:
            self._note(None)
            self._keep(self._forward_s)

    def ready(self, parameter: torch.Tensor) -> None:
        """This gradient has been computed."""
        if not self.is_measuring or parameter not in self._owners:
            return
        owner, since_s = self._owners[parameter], self._since[1]
        now_s = self._now()
        self._running[owner] = self._running.get(owner, 0.0) + now_s - since_s
        self._since = None, now_s

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
        """Layers in the order in which they were used, those that never were last; rows are not known here."""
        readers = [*self._order, *(reader for reader, _ in self._readers if reader not in self._order)]
        profiles = []
        for reader in readers:
            own = [parameter for parameter, owner in self._owners.items() if owner is reader and parameter in names]
            if own:
                tensors = tuple(_profile_tensor(p, names[p], reader, layers.get(p), obstacles) for p in own)
                profiles.append(
                    LayerProfile(
                        name=_name_layer([tensor.name for tensor in tensors]),
                        tensors=tensors,
                        forward_s=self._forward_s.get(reader, 0.0),
                        backward_s=self._backward_s.get(reader, 0.0),
                    )
                )
        return Profile(layers=tuple(profiles))

    def _note(self, module: torch.nn.Module | None) -> None:
        before, since_s = self._since
        now_s = self._now()
        if before is not None:
            self._running[before] = self._running.get(before, 0.0) + now_s - since_s
        self._since = module, now_s

    def _keep(self, fastest_s: dict[torch.nn.Module, float]) -> None:
        for module, seconds in self._running.items():
            fastest_s[module] = min(seconds, fastest_s.get(module, seconds))
        self._running = {}

    def _now(self) -> float:
        synchronise(self._device)
        return self._clock()


class _Mark(ForwardHook):
    def __init__(self, survey: Survey) -> None:
        self._survey = survey

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._survey.use(module)


class RowCounter:
    """K of every layer that has one, per pass."""

    def __init__(self) -> None:
        self._rows: dict[str, float] = {}
        self._passes = 0
        self._counted: set[str] = set()  # in a forward pass; what a backward pass computes again is the same
        # An embedding's touched rows are counted in the first pass; then its tokens tell.
        self._touched: dict[str, float] = {}  # rows per token

    def watch(self, layer: Layer, name: str) -> None:
        layer.module.register_forward_pre_hook(_Count(self, layer.kind, layer.weight.shape[1], name), with_kwargs=True)

    def end_pass(self) -> None:
        self._passes += 1

    def take(self) -> dict[str, float]:
        """Of an average pass since this was asked last."""
        rows = {name: rows / max(1, self._passes) for name, rows in self._rows.items()}
        self._rows, self._passes, self._counted = {}, 0, set()
        return rows

    def count(self, kind: Kind, depth: int, name: str, input: torch.Tensor) -> None:
        if torch._C._current_graph_task_id() == -1:
            self._counted.add(name)
        elif name in self._counted:
            return
        rows = float(input.numel())
        if kind is Kind.LINEAR:
            rows /= max(1, depth)
        elif name in self._touched:
            rows *= self._touched[name]
        elif input.numel():
            rows = float(torch.unique(input).numel())
            self._touched[name] = rows / input.numel()
        self._rows[name] = self._rows.get(name, 0.0) + rows


class _Count(ForwardHook):
    """In front of a module's forward.  It must not hold the module: a discarded model would wait for a collection."""

    def __init__(self, counter: RowCounter, kind: Kind, depth: int, name: str) -> None:
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
    shape, itemsize = tuple(parameter.shape), parameter.element_size()
    reduces = can_reduce(parameter) and not getattr(reader, "sparse", False)
    if layer is None:
        return TensorProfile(
            name=name,
            shape=shape,
            kind=find_kind(reader),
            itemsize=itemsize,
            can_reduce=reduces,
            obstacle=obstacles.get(parameter, ""),
        )
    return TensorProfile(
        name=name,
        shape=shape,
        kind=layer.kind,
        itemsize=itemsize,
        row_itemsize=itemsize,
        can_reduce=reduces,
        product_s=layer.product_s,
    )


def _name_layer(tensors: Sequence[str]) -> str:
    """What the names of its tensors begin with."""
    return tensors[0].rpartition(".")[0] or tensors[0]
