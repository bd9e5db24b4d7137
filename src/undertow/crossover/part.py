"""A worker's part in the turns of one device: when it may compute, and what it tells the arbiter.

In: "I want to compute", "I wait now", "a step has ended", words of the arbiter, the time.
Out: words to the arbiter; whether the worker computes.  No sockets, no threads, no clock.

Without an arbiter the worker computes when it likes.  While there is no other job on the device it
need not ask, and says what it did in a word or two per second.
"""

from __future__ import annotations

import enum
import math

from undertow.crossover import messages
from undertow.crossover.messages import FromArbiter, ToArbiter
from undertow.crossover.standing import Standings
from undertow.crossover.turns import Place

WORD_EVERY_S = 0.3


class Mode(enum.Enum):
    LOOSE = "there is no arbiter"
    ALONE = "there is no other job"
    SHARED = "every turn is asked for"


class Part:
    """Of one worker."""

    def __init__(self) -> None:
        self.mode = Mode.LOOSE
        self.is_computing = False
        self.is_granted = False  # by an arbiter that counts the time
        self.is_recalled = False  # another job goes first: give back between two layers
        self.waited_s = 0.0  # for the turn, so far
        self.standings = Standings()
        self._asked_s: float | None = None  # since when it has waited for the turn
        self._since_s = 0.0  # when it began to compute
        self._step = 0
        # Since the last word about steps.
        self._steps = 0
        self._compute_s = 0.0
        self._network_s = 0.0
        self._word_s = -math.inf  # the first step is always told

    @property
    def is_waiting(self) -> bool:
        """Whether it has asked for the turn."""
        return self._asked_s is not None

    # What the worker does

    def take(self, now: float) -> list[ToArbiter]:
        """It wants to compute, and does so if it may; else it waits."""
        if self.is_computing or self.is_waiting:
            return []
        if self.mode is not Mode.SHARED:
            self._compute(now)
            return []
        self._asked_s = now
        place = self.standings.place_for(self._step + 1)
        return [messages.Ask() if place is None else messages.Ask(place.virtual_s, place.cost_s)]

    def give(self, now: float) -> list[ToArbiter]:
        """It neither computes nor wants to."""
        is_known = self.is_granted or self.is_waiting
        self._stop(now)
        return [messages.Give()] if is_known else []

    def end_step(self, now: float) -> list[ToArbiter]:
        """It gives back, because a step has ended."""
        said = self.give(now)
        self._step += 1
        self._steps += 1
        if self.mode is Mode.SHARED or now - self._word_s > WORD_EVERY_S:
            said += self._tell_steps(now)
        return said

    def note_network(self, seconds: float) -> None:
        """So long it has waited for the network."""
        self._network_s += seconds

    # What the arbiter does

    def meet(self) -> None:
        """There is an arbiter, and it has welcomed this worker."""
        # Somebody else may be here: ask, unless the arbiter says that there is no need.
        self.mode, self.is_granted = Mode.SHARED, False

    def lose(self, now: float) -> None:
        """The arbiter is gone: whoever waits for the turn goes on without it."""
        self._be_free(Mode.LOOSE, now)

    def hear(self, message: FromArbiter, now: float) -> list[ToArbiter]:
        match message:
            case messages.Grant():
                if self.is_waiting:
                    self.is_granted = True
                    self._compute(now)
            case messages.Recall():
                self.is_recalled = self.is_granted
            case messages.Company():
                said = self._tell_steps(now) if self._steps else []  # those that nobody counted
                self.mode, self.is_granted = Mode.SHARED, self.is_computing
                return said if self.is_computing else [*said, messages.Give()]
            case messages.Solitude():
                self._be_free(Mode.ALONE, now)
            case messages.Standing(step, virtual_s, cost_s):
                self.standings.hear(step, Place(virtual_s, cost_s))
        return []

    def _tell_steps(self, now: float) -> list[ToArbiter]:
        """All since the last word."""
        is_uncounted = self.mode is not Mode.SHARED
        said = messages.EndStep(self._step, self._steps, self._compute_s, self._network_s, is_uncounted)
        self._steps, self._compute_s, self._network_s, self._word_s = 0, 0.0, 0.0, now
        return [said]

    def _be_free(self, mode: Mode, now: float) -> None:
        self.mode = mode
        self.is_granted = self.is_recalled = False
        self.standings.forget()
        if self.is_waiting:
            self._compute(now)

    def _compute(self, now: float) -> None:
        if self._asked_s is not None:
            self.waited_s += now - self._asked_s
            self._asked_s = None
        self.is_computing = True
        self._since_s = now

    def _stop(self, now: float) -> None:
        if self.is_computing:
            self._compute_s += now - self._since_s
        if self._asked_s is not None:
            self.waited_s += now - self._asked_s
        self._asked_s = None
        self.is_computing = self.is_granted = self.is_recalled = False
