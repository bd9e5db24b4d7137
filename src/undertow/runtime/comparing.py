"""How a worker's clock is compared with rank 0's, while anybody takes note of times.

In: "time has passed", answers of rank 0.  Out: questions to it, and notes of what each round trip showed.
One round trip tells the difference to half of its length, and most meet something in their way: so many are made when
the workers have met, before there is anything else on the links, and a few with every tick.
"""

from __future__ import annotations

from collections.abc import Callable

from undertow.coordinator.messages import AskTime, Time
from undertow.trace import notes
from undertow.trace.recorder import Recorder

AT_ONCE, PER_TICK = 16, 4


class Comparing:
    """Owned by the engine thread."""

    def __init__(self, recorder: Recorder, ask: Callable[[AskTime], None]) -> None:
        self._recorder = recorder
        self._ask = ask
        self._left = 0  # answers to come, one after the other
        self._has_begun = False

    def begin(self) -> None:
        """Rank 0 is connected."""
        if self._recorder.is_on and not self._has_begun:
            self._has_begun, self._left = True, AT_ONCE
            self._question()

    def tick(self) -> None:
        if not self._has_begun:
            self.begin()
        elif self._recorder.is_on and not self._left:
            self._left = PER_TICK
            self._question()

    def answer(self, question: AskTime) -> Time:
        """On rank 0."""
        return Time(question.asked_s, self._recorder.clock())

    def hear(self, answer: Time) -> None:
        now_s = self._recorder.clock()
        offset_s = answer.told_s - (answer.asked_s + now_s) / 2
        self._recorder.note(notes.Compared(now_s, offset_s, now_s - answer.asked_s))
        self._left = max(0, self._left - 1)
        if self._left:
            self._question()

    def _question(self) -> None:
        self._ask(AskTime(self._recorder.clock()))
