"""Crossover on a virtual clock: a host's arbiter, and the turn of a worker on it.

In: what a worker does, the words of either side.  Out: when the worker may compute.
The arbiter's `Office` and the worker's `Part` are the real ones.  Here is what their sockets and threads do in a real
job: a word takes a while, and a job's first worker passes on to the others where the job stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from undertow.crossover import messages
from undertow.crossover.messages import FromArbiter, Hello, ToArbiter
from undertow.crossover.office import Letters, Office
from undertow.crossover.part import Mode, Part
from undertow.crossover.turns import Place
from undertow.sim.clock import Clock


class Arbiter:
    """Of one host.  A word between it and a worker takes `word_s`, and words stay in order."""

    def __init__(self, clock: Clock, word_s: float) -> None:
        self.office = Office()
        self._clock = clock
        self._word_s = word_s
        self._turns: list[Turn] = []  # by the office's numbers of members
        self._ticks_s: float | None = None  # when it will look at the lease

    def admit(self, hello: Hello, turn: Turn) -> int:
        """A worker, before anything else happens: the number that it has from now on."""
        self._turns.append(turn)
        member = len(self._turns) - 1
        for number, message in self.office.hear(member, hello, self._clock.now_s):
            if isinstance(message, messages.Welcome):
                turn.part.meet()
            else:
                self._turns[number].hear(message)
        return member

    def say(self, member: int, message: ToArbiter) -> None:
        self._clock.at(self._clock.now_s + self._word_s, self._hear, member, message)

    def _hear(self, member: int, message: ToArbiter) -> None:
        self._deliver(self.office.hear(member, message, self._clock.now_s))

    def _deliver(self, letters: Letters) -> None:
        for member, message in letters:
            self._clock.at(self._clock.now_s + self._word_s, self._turns[member].hear, message)
        deadline_s = self.office.deadline_s
        if deadline_s is not None and self._ticks_s is None:
            self._ticks_s = deadline_s
            self._clock.at(deadline_s, self._tick)

    def _tick(self) -> None:
        self._ticks_s = None
        self._deliver(self.office.tick(self._clock.now_s))


class Turn:
    """A worker's, as `crossover.client` is in a real one.  Without an arbiter the worker computes when it likes."""

    def __init__(self, clock: Clock, tell_s: float) -> None:
        self.part = Part()
        self.colleagues: Sequence[Turn] = ()  # all workers of the job, by rank
        self._clock = clock
        self._tell_s = tell_s  # from one worker of a job to another
        self._arbiter: Arbiter | None = None
        self._member = 0
        self._then: Callable[[], None] | None = None  # what the worker does when it may compute

    def meet(self, arbiter: Arbiter, hello: Hello) -> None:
        self._arbiter = arbiter
        self._member = arbiter.admit(hello, self)

    # What the worker does

    def take(self, then: Callable[[], None]) -> None:
        """Go on with this when the worker may compute: at once, if it does already."""
        assert self._then is None
        self._say(self.part.take(self._clock.now_s))
        if self.part.is_computing:
            then()
        else:
            self._then = then

    def give(self) -> None:
        if self.part.is_computing:
            self._say(self.part.give(self._clock.now_s))

    def make_way(self, then: Callable[[], None]) -> None:
        """In front of a layer."""
        if self.part.is_recalled:
            self.give()
        self.take(then)

    def end_step(self) -> None:
        self._say(self.part.end_step(self._clock.now_s))

    # What it hears

    def hear(self, message: FromArbiter) -> None:
        self._say(self.part.hear(message, self._clock.now_s))
        match message:
            case messages.Grant(lift_s) if lift_s > 0:
                self._pass_on(self.colleagues[0], Turn.raise_standing, lift_s)
            case messages.Standing(step, virtual_s, cost_s):
                for colleague in self.colleagues[1:]:
                    self._pass_on(colleague, Turn.hear_standing, step, Place(virtual_s, cost_s))
        if self.part.is_computing and self._then is not None:
            then, self._then = self._then, None
            then()

    def hear_standing(self, step: int, place: Place) -> None:
        """From the job's first worker."""
        self.part.standings.hear(step, place)

    def raise_standing(self, to_s: float) -> None:
        """In the first worker."""
        self._say([messages.Lift(to_s)])

    def _pass_on(self, colleague: Turn, what: Callable[..., None], *words: object) -> None:
        delay_s = 0.0 if colleague is self else self._tell_s
        self._clock.at(self._clock.now_s + delay_s, what, colleague, *words)

    def _say(self, said: Sequence[ToArbiter]) -> None:
        if self._arbiter is not None and self.part.mode is not Mode.LOOSE:
            for message in said:
                self._arbiter.say(self._member, message)
