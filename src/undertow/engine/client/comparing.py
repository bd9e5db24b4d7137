"""Comparison of a worker's clock with rank 0's, while a trace is recorded.

In: ticks, answers of rank 0.  Out: questions to it, and an event with what each round trip showed.
A round trip tells the difference to half of its length, and most are delayed by other frames: so many are made when
the workers have connected, before there is anything else on the links, and a few with every tick.
"""

from __future__ import annotations

from collections.abc import Callable

from undertow.engine.coordinator.messages import AskTime, Time
from undertow.tracing import events
from undertow.tracing.recorder import Recorder

AT_ONCE, PER_TICK = 16, 4


class ClockComparison:
    """Side of one rank in the comparison of clocks.  Owned by the engine thread."""

    def __init__(self, recorder: Recorder, ask: Callable[[AskTime], None]) -> None:
        self._recorder = recorder
        self._ask = ask
        self._left = 0  # answers to come, one after the other
        self._has_begun = False

    def begin(self) -> None:
        """Ask the first questions, now that rank 0 is connected."""
        if self._recorder.is_on and not self._has_begun:
            self._has_begun, self._left = True, AT_ONCE
            self._ask_time()

    def tick(self) -> None:
        if not self._has_begun:
            self.begin()
        elif self._recorder.is_on and not self._left:
            self._left = PER_TICK
            self._ask_time()

    def answer(self, question: AskTime) -> Time:
        """Answer another rank's question, on rank 0."""
        return Time(question.asked_s, self._recorder.clock())

    def take(self, answer: Time) -> None:
        now_s = self._recorder.clock()
        offset_s = answer.told_s - (answer.asked_s + now_s) / 2
        self._recorder.record(events.Compared(now_s, offset_s, now_s - answer.asked_s))
        self._left = max(0, self._left - 1)
        if self._left:
            self._ask_time()

    def _ask_time(self) -> None:
        self._ask(AskTime(self._recorder.clock()))
