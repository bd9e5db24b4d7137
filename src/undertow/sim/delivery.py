"""Stages 2 to 9 of one virtual worker: from a gradient that is ready to a gate that opens.

In: gradients of a worker.  Out: contributions to its engine, in the order that the schedule wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from undertow.core.flow import Contribution
from undertow.settings import Priority
from undertow.sim.clock import Clock
from undertow.sim.engine import Engine
from undertow.sim.layout import Route
from undertow.sim.ring import Member

# More than any model has tensors: what is left of one pass goes before all of the next.
PLACES = 1 << 32


class Delivery:
    def __init__(self, clock: Clock, engine: Engine, route: Route, go_on: Callable[[], None]) -> None:
        self.rank = engine.rank
        self._clock = clock
        self._engine = engine
        self._route = route
        self._go_on = go_on
        self._step = 0
        self._unready: list[int] = []  # of each carrier: members that are not ready
        self._pending: list[int] = []  # and answers that are still to come
        self._left = 0  # carriers that some answer is still to come for
        self._held: list[int] = []  # carriers that wait for the end of backward
        self._multiplies_until_s = 0.0

    def begin(self, step: int) -> None:
        self._step = step + 1
        self._unready = [len(carrier.members) for carrier in self._route.carriers]
        self._pending = [carrier.answers for carrier in self._route.carriers]
        self._left = len(self._pending)

    def ready(self, tensor: int) -> None:
        index = self._route.of_tensor[tensor]
        if index is None:
            return
        self._unready[index] -= 1
        if self._unready[index]:
            return
        if self._route.schedule.is_wait_free:
            self._send(index)
        else:
            self._held.append(index)

    def end(self) -> None:
        held, self._held = self._held, []
        for index in held:
            self._send(index)

    def is_here(self, layer: int) -> bool:
        if not self._route.schedule.has_gates:
            return not self._left
        return not any(self._pending[index] for index in self._route.of_layer[layer])

    def contribute(self, contributions: Sequence[Contribution]) -> None:
        self._engine.contribute(contributions)

    def multiply(self, seconds: float, then: Callable[[], None]) -> None:
        self._multiplies_until_s = max(self._multiplies_until_s, self._clock.now_s) + seconds
        self._clock.at(self._multiplies_until_s, then)

    def _send(self, index: int) -> None:
        is_ordered = self._route.schedule.priority is not Priority.OFF
        priority = self._step * PLACES + self._route.places[index] if is_ordered else 0

        def answered(contribution: Contribution) -> None:
            self._pending[index] -= 1
            if not self._pending[index]:
                self._left -= 1
                self._go_on()

        self._route.carriers[index].send(self, priority, answered)


class Mixed:
    """A worker whose plan lets torch's process group sum some of the gradients."""

    def __init__(self, engine: Delivery, ring: Member) -> None:
        self._engine = engine
        self._ring = ring

    def begin(self, step: int) -> None:
        self._engine.begin(step)
        self._ring.begin(step)

    def ready(self, tensor: int) -> None:
        (self._ring if tensor in self._ring.of_tensor else self._engine).ready(tensor)

    def end(self) -> None:
        self._engine.end()

    def is_here(self, layer: int) -> bool:
        return self._engine.is_here(layer) and self._ring.is_here(layer)
