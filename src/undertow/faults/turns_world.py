"""Virtual time for jobs that share devices: events in order, and processes that may stop or die.

In: what happens after how long, and to which process.  Out: the same, one after the other, with the story of it.
What happens to a stopped process happens when it goes on again, in the same order; to a dead one nothing does.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import NoReturn

from undertow.faults.case import Case
from undertow.faults.story import Broken

Call = Callable[[], None]
MOST_EVENTS = 30_000  # ten times what a run has


class Process:
    """A worker or an arbiter, on a host."""

    def __init__(self, name: str, host: int) -> None:
        self.name = name
        self.host = host
        self.is_stopped = False
        self.is_dead = False
        self.backlog: list[Call] = []  # what would have happened while it was stopped


class World:
    def __init__(self, case: Case) -> None:
        self.now_s = 0.0
        self.dice: random.Random = case.dice
        self.story = case.story
        self.checks: list[Callable[[int], None]] = []  # after every event, of the host that it touched
        self._events: list[tuple[float, int, Call, Process | None]] = []
        self._sequence = itertools.count()  # of events at the same time the first goes first

    def at(self, delay_s: float, call: Call, process: Process | None = None) -> None:
        self.at_time(self.now_s + delay_s, call, process)

    def at_time(self, when_s: float, call: Call, process: Process | None = None) -> None:
        """To the last bit: of two things at one time the first goes first."""
        heapq.heappush(self._events, (when_s, next(self._sequence), call, process))

    def tell(self, what: str) -> None:
        self.story.tell(f"{self.now_s:9.4f} {what}")

    def fail(self, claim: str) -> NoReturn:
        raise Broken(claim, self.story)

    def stop(self, process: Process, for_s: float) -> None:
        if not process.is_dead and not process.is_stopped:
            self.tell(f"{process.name} is stopped for {for_s:.3f} s")
            process.is_stopped = True
            self.at(for_s, lambda: self._go_on(process))

    def run(self, until: Callable[[], bool], *, most_s: float) -> None:
        """Up to this time at most; it is an error of the caller's if nothing is left to happen before."""
        for _ in range(MOST_EVENTS):
            if until() or not self._events or self._events[0][0] > most_s:
                return
            self.now_s, _, call, process = heapq.heappop(self._events)
            if process is None:
                call()
            elif process.is_stopped:
                process.backlog.append(call)
            elif not process.is_dead:
                call()
                self._check(process.host)
        self.fail(f"there is no end: {MOST_EVENTS} events, and it is only {self.now_s:.3f} s")

    def _go_on(self, process: Process) -> None:
        process.is_stopped = False
        self.tell(f"{process.name} goes on")
        backlog, process.backlog = process.backlog, []
        for call in backlog:
            if not process.is_dead:
                call()
                self._check(process.host)

    def _check(self, host: int) -> None:
        for check in self.checks:
            check(host)
