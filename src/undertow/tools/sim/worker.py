"""Worker on a virtual clock: it computes layer by layer on a device of its own or a shared one, and waits at gates.

In: the layers' times, results of the network.  Out: gradients as they become ready, and when each step ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from undertow.tools.virtual.worker import VirtualWorker
from undertow.tools.virtual.world import Clock

FOREVER = 1 << 60


@dataclass(frozen=True)
class Layer:
    forward_s: float
    backward_s: float
    tensors: Sequence[int]


class Delivery(Protocol):
    """Delivery of a worker's gradients: it sums them over all workers, by an engine or a ring."""

    def begin(self, step: int) -> None:
        """Note that a backward pass begins."""

    def ready(self, tensor: int) -> None:
        """Send this gradient: it is final."""

    def end(self) -> None:
        """Note that all gradients are final."""

    def is_here(self, layer: int) -> bool:
        """Return whether the layer may run its forward."""


class Worker:
    """Worker of a job that is alone on its devices.  `delivery` calls `go_on` whenever a result has come."""

    def __init__(self, clock: Clock, layers: Sequence[Layer], steps: int, pace: Callable[[int], float]) -> None:
        self.ends_s: list[float] = []  # the end of every step
        self.delivery: Delivery
        self._clock = clock
        self._layers = layers
        self._steps = steps
        self._pace = pace  # factor on the computing time of a step
        self._slowdown = 1.0
        self._waits_at: int | None = None  # the layer whose gate is closed

    def start(self) -> None:
        """Start a step: backward, then the next forward."""
        step = len(self.ends_s)
        self._slowdown = self._pace(step)
        self.delivery.begin(step)
        self._compute(len(self._layers) - 1)

    def _compute(self, layer: int) -> None:
        """Compute this layer's backward."""
        self._run(self._layers[layer].backward_s * self._slowdown, self._computed, layer)

    def _computed(self, layer: int) -> None:
        for tensor in reversed(self._layers[layer].tensors):
            self.delivery.ready(tensor)
        if layer:
            self._compute(layer - 1)
        else:
            self.delivery.end()
            self._end_backward()

    def _end_backward(self) -> None:
        self._enter(0)

    def _enter(self, layer: int) -> None:
        """Compute this layer's forward and those after it, as far as the gates are open."""
        if layer == len(self._layers):
            self._end()
        elif self.delivery.is_here(layer):
            self._run(self._layers[layer].forward_s * self._slowdown, self._leave, layer)
        else:
            self._wait(layer)

    def _leave(self, layer: int) -> None:
        """Continue after this layer's forward."""
        self._enter(layer + 1)

    def _wait(self, layer: int) -> None:
        self._waits_at = layer

    def go_on(self) -> None:
        """Continue if the gate that the worker waits at is open by now."""
        layer = self._waits_at
        if layer is not None and self.delivery.is_here(layer):
            self._waits_at = None
            self._enter(layer)

    def _run(self, duration_s: float, then: Callable[[int], None], layer: int) -> None:
        """Compute on the device, which is always free."""
        self._clock.at(self._clock.now_s + duration_s, then, layer)

    def _end(self) -> None:
        self.ends_s.append(self._clock.now_s)
        if len(self.ends_s) < self._steps:
            self.start()


@dataclass(frozen=True)
class Span:
    """Operation of a job on a device."""

    job: int
    begin_s: float
    end_s: float


class Device:
    """Device that runs the operations of all jobs one at a time, in the order in which they come."""

    def __init__(self, clock: Clock) -> None:
        self.spans: list[Span] = []
        self._clock = clock
        self._free_s = 0.0

    def run(self, job: int, duration_s: float, then: Callable[[], None]) -> None:
        begin_s = max(self._free_s, self._clock.now_s)
        self._free_s = begin_s + duration_s
        self.spans.append(Span(job, begin_s, self._free_s))
        self._clock.at(self._free_s, then)


class SharingWorker(Worker):
    """Worker that shares its device and trains until the clock is stopped.  `on_start` is called with each new step.

    It takes the turn where `torch.turns` does: before the first layer and, without gates, for the optimizer.  It gives
    the turn back at the end of backward, while it waits at a gate, and between two layers if it is recalled.  The
    update itself takes no time here, because profiles do not have it.
    """

    def __init__(
        self,
        clock: Clock,
        layers: Sequence[Layer],
        pace: Callable[[int], float],
        *,
        has_gates: bool,
        turn: VirtualWorker,
        compute: Callable[[float, Callable[[], None]], None],
        on_start: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(clock, layers, FOREVER, pace)
        self._has_gates = has_gates
        self._turn = turn
        self._use_device = compute
        self._on_start = on_start

    def start(self) -> None:
        if self._on_start is not None:
            self._on_start(len(self.ends_s))
        super().start()

    def _run(self, duration_s: float, then: Callable[[int], None], layer: int) -> None:
        self._turn.make_way()
        self._take(partial(self._use_device, duration_s, partial(then, layer)))

    def _end_backward(self) -> None:
        self._turn.end_step()
        if self._has_gates:
            self._take(partial(self._enter, 0))
        else:
            self._enter(0)

    def _enter(self, layer: int) -> None:
        if layer == 0 and not self._has_gates and self.delivery.is_here(0):
            self._turn.begin_update()
            self._turn.when(self._turn.has_turn, self._update)
        else:
            super()._enter(layer)

    def _update(self) -> None:
        self._turn.end_update()
        super()._enter(0)

    def _wait(self, layer: int) -> None:
        super()._wait(layer)
        self._turn.begin_pause()

    def go_on(self) -> None:
        if self._waits_at is not None and self.delivery.is_here(self._waits_at):
            self._turn.end_pause()
        super().go_on()

    def _take(self, then: Callable[[], None]) -> None:
        self._turn.take()
        self._turn.when(self._turn.has_turn, then)
