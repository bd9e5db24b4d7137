"""A worker that shares its device with workers of other jobs.

In: the layers' times, results of the network, the turn.  Out: what any worker gives, later.
Takes turns as `torch.turns`, `torch.passes` and `runtime.waiting` do: before the first layer, between two layers if
another job goes first, not while it waits at a gate, not after backward; and once more to update the parameters where
that is not done at gates.  The update itself takes no time here: no profile tells it apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from undertow.runtime.waiting import KEEP_TURN_S
from undertow.sim.clock import Clock
from undertow.sim.sharing_turns import Turn
from undertow.sim.worker import Layer, Worker

FOREVER = 1 << 60


@dataclass(frozen=True)
class Span:
    """A job has computed."""

    job: int
    begin_s: float
    end_s: float


class Device:
    """Runs one operation at a time, in the order in which they come, whosever they are."""

    def __init__(self, clock: Clock) -> None:
        self.spans: list[Span] = []
        self._clock = clock
        self._free_s = 0.0

    def run(self, job: int, duration_s: float, then: Callable[[], None]) -> None:
        begin_s = max(self._free_s, self._clock.now_s)
        self._free_s = begin_s + duration_s
        self.spans.append(Span(job, begin_s, self._free_s))
        self._clock.at(self._free_s, then)


class Companion(Worker):
    """Trains until the clock is stopped; `on_start` is told which step begins."""

    def __init__(
        self,
        clock: Clock,
        layers: Sequence[Layer],
        pace: Callable[[int], float],
        *,
        has_gates: bool,
        turn: Turn,
        compute: Callable[[float, Callable[[], None]], None],
        on_start: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(clock, layers, FOREVER, pace)
        self._has_gates = has_gates
        self._turn = turn
        self._use_device = compute
        self._on_start = on_start
        self._waits_since_s = 0.0
        self._waits = 0  # so many times it has waited for the network

    def start(self) -> None:
        if self._on_start is not None:
            self._on_start(len(self.ends_s))
        super().start()

    def _run(self, duration_s: float, then: Callable[[int], None], layer: int) -> None:
        self._turn.make_way(partial(self._use_device, duration_s, partial(then, layer)))

    def _end_backward(self) -> None:
        self._turn.end_step()
        if self._has_gates:
            self._turn.take(partial(self._enter, 0))
        else:
            self._enter(0)

    def _enter(self, layer: int) -> None:
        if layer == 0 and not self._has_gates and self.delivery.is_here(0):
            self._turn.take(self._update)
        else:
            super()._enter(layer)

    def _update(self) -> None:
        self._turn.give()
        super()._enter(0)

    def _wait(self, layer: int) -> None:
        super()._wait(layer)
        self._waits += 1
        self._waits_since_s = self._clock.now_s
        if self._turn.part.is_computing:
            self._clock.at(self._clock.now_s + KEEP_TURN_S, self._hand_over, self._waits)

    def _hand_over(self, wait: int) -> None:
        """Others may compute, if this is still the same wait."""
        if self._waits_at is not None and self._waits == wait:
            self._turn.give()

    def go_on(self) -> None:
        if self._waits_at is not None and self.delivery.is_here(self._waits_at):
            waited_s = self._clock.now_s - self._waits_since_s - KEEP_TURN_S
            self._turn.part.note_network(max(0.0, waited_s))
        super().go_on()
