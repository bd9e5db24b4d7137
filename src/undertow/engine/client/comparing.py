"""Comparison of a worker's clock with rank 0's, while a trace is recorded.

In: ticks, answers from rank 0.  Out: requests to rank 0, and a trace event with the result of each round trip.
A round trip gives the difference with an error of up to half its duration, and most are delayed by other frames.
Several are therefore made as soon as the workers are connected, before other frames use the links, and a few more
with every tick.
"""

from __future__ import annotations

from collections.abc import Callable

from undertow.engine.coordinator.messages import AskTime, Time
from undertow.tracing import events
from undertow.tracing.recorder import Recorder

AT_ONCE, PER_TICK = 16, 4


class ClockComparison:
    """One rank's side of the comparison of clocks.  Owned by the engine thread."""

    def __init__(self, recorder: Recorder, ask: Callable[[AskTime], None]) -> None:
        self._recorder = recorder
        self._ask = ask
        self._left = 0  # round trips still to be made, one at a time
        self._has_begun = False

    def begin(self) -> None:
        """Begin the first round trips, now that rank 0 is connected."""
        if self._recorder.is_on and not self._has_begun:
            self._has_begun, self._left = True, AT_ONCE
            self._ask_time()

    def tick(self) -> None:
        if not self._has_begun:
            self.begin()
        elif self._recorder.is_on and not self._left:
            self._left = PER_TICK
            self._ask_time()

    def answer(self, request: AskTime) -> Time:
        """Answer the request of another rank, on rank 0."""
        return Time(request.asked_s, self._recorder.clock())

    def take(self, answer: Time) -> None:
        now_s = self._recorder.clock()
        offset_s = answer.told_s - (answer.asked_s + now_s) / 2
        self._recorder.record(events.Compared(now_s, offset_s, now_s - answer.asked_s))
        self._left = max(0, self._left - 1)
        if self._left:
            self._ask_time()

    def _ask_time(self) -> None:
        self._ask(AskTime(self._recorder.clock()))
