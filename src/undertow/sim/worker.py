"""A worker on a virtual clock: a device that computes layer by layer, and gates that it waits at.

In: the layers' times, results of the network.  Out: gradients as they become ready, and when each step ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from undertow.sim.clock import Clock


@dataclass(frozen=True)
class Layer:
    """Of a step's program."""

    forward_s: float
    backward_s: float
    tensors: Sequence[int]


class Delivery(Protocol):
    """What brings a worker's gradients to all others and back: an engine, or a ring."""

    def begin(self, step: int) -> None:
        """A backward pass begins."""

    def ready(self, tensor: int) -> None:
        """This gradient is final."""

    def end(self) -> None:
        """So are all."""

    def is_here(self, layer: int) -> bool:
        """Whether the layer may run its forward."""


class Worker:
    """`delivery` calls `go_on` whenever a result has come."""

    def __init__(self, clock: Clock, layers: Sequence[Layer], steps: int, pace: Callable[[int], float]) -> None:
        self.ends_s: list[float] = []  # of every step
        self.delivery: Delivery
        self._clock = clock
        self._layers = layers
        self._steps = steps
        self._pace = pace  # how many times longer than usual it computes in a step
        self._slowdown = 1.0
        self._waits_at: int | None = None  # the layer whose gate is closed

    def start(self) -> None:
        """A step is from the start of backward to the end of the next forward."""
        step = len(self.ends_s)
        self._slowdown = self._pace(step)
        self.delivery.begin(step)
        self._compute(len(self._layers) - 1)

    def _compute(self, layer: int) -> None:
        """Backward through this layer."""
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
        """Forward from this layer on, as far as the gates are open."""
        if layer == len(self._layers):
            self._end()
        elif self.delivery.is_here(layer):
            self._run(self._layers[layer].forward_s * self._slowdown, self._leave, layer)
        else:
            self._wait(layer)

    def _leave(self, layer: int) -> None:
        """The layer's forward is done."""
        self._enter(layer + 1)

    def _wait(self, layer: int) -> None:
        self._waits_at = layer

    def go_on(self) -> None:
        layer = self._waits_at
        if layer is not None and self.delivery.is_here(layer):
            self._waits_at = None
            self._enter(layer)

    def _run(self, duration_s: float, then: Callable[[int], None], layer: int) -> None:
        """On the device, which is always free."""
        self._clock.at(self._clock.now_s + duration_s, then, layer)

    def _end(self) -> None:
        self.ends_s.append(self._clock.now_s)
        if len(self.ends_s) < self._steps:
            self.start()
