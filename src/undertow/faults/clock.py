"""Virtual time: a clock that the driver sets, and a loop that runs timers when it says so.

The loop stands in for the engine thread (see wire.loop) and keeps its promises: calls run one after
the other and in order, timers not before they are due, a tick every second.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from undertow.wire.loop import TICK_S


class Clock:
    """Starts at zero and stands still until the driver moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class VirtualLoop:
    """One worker's engine.  A posted call runs at once, unless the driver lets the engine lag behind."""

    def __init__(self, clock: Clock) -> None:
        self.lags = False
        self._clock = clock
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()  # breaks ties: calls are never compared
        self._tickers: list[Callable[[float], None]] = []
        self._is_running = False

    # What a group wants of its loop

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        self._posted.append((call, arguments))
        if not self.lags and not self._is_running:
            self._run_posted()

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self._clock.now_s + delay_s, next(self._sequence), call))

    def every_tick(self, call: Callable[[float], None]) -> None:
        if not self._tickers:
            self.later(TICK_S, self._tick)
        self._tickers.append(call)

    def no_tick(self, call: Callable[[float], None]) -> None:
        self._tickers.remove(call)

    def on_failure(self, call: Callable[[Exception], None]) -> None:
        """A loop in memory has no thread that could end."""

    def no_failure(self, call: Callable[[Exception], None]) -> None: ...

    # The driver's side

    @property
    def is_due(self) -> bool:
        """Whether there is something to run now."""
        return bool(self._posted) or (bool(self._timers) and self._timers[0][0] <= self._clock.now_s)

    @property
    def next_due_s(self) -> float:
        """When the next timer is due; infinity if there is none."""
        return self._timers[0][0] if self._timers else float("inf")

    def run_due(self) -> None:
        """What was posted, then all timers that are due, as the engine thread does."""
        self._run_posted()
        while self._timers and self._timers[0][0] <= self._clock.now_s:
            self.post(heapq.heappop(self._timers)[2])

    def _run_posted(self) -> None:
        self._is_running = True
        try:
            while self._posted:
                call, arguments = self._posted.popleft()
                call(*arguments)
        finally:
            self._is_running = False

    def _tick(self) -> None:
        if self._tickers:
            self.later(TICK_S, self._tick)
        for ticker in tuple(self._tickers):
            ticker(self._clock.now_s)
