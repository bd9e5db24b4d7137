"""Virtual time; processes in it, which may be stopped or die, and the channels between them.

In: calls, each with its time and perhaps its process.  Out: the same calls, the earliest first; those of equal times in
the order in which they were planned.  Calls of a stopped process are made when it continues, in the same order; those
of a dead process are dropped.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import partial
from typing import Any

DueCall = tuple[float, int, Callable[..., object], tuple[Any, ...]]  # the number breaks ties: calls are never compared


class Timetable:
    """Calls, each due at a time."""

    def __init__(self) -> None:
        self._due: list[DueCall] = []
        self._sequence = 0

    def at(self, time_s: float, call: Callable[..., object], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._due, (time_s, self._sequence, call, arguments))

    @property
    def next_s(self) -> float:
        """Time of the first call; infinity if there is none."""
        return self._due[0][0] if self._due else math.inf

    def pop(self) -> Callable[[], object]:
        """Remove the first call and return it; there must be one."""
        _, _, call, arguments = heapq.heappop(self._due)
        return partial(call, *arguments)


class Clock(Timetable):
    """Virtual clock: time stands still during a call and passes from one call to the next."""

    def __init__(self, now_s: float = 0.0) -> None:
        super().__init__()
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def after(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> None:
        self.at(self.now_s + delay_s, call, *arguments)

    def step(self) -> None:
        """Make the first call; there must be one."""
        self.now_s = self.next_s
        self.pop()()

    def run(self) -> None:
        """Make all calls, until none is left."""
        due, take = self._due, heapq.heappop
        while due:
            self.now_s, _, call, arguments = take(due)
            call(*arguments)

    def stop(self) -> None:
        """Make no more calls: neither those that are planned nor those that the current call plans."""
        self._due.clear()
        self._due = []


class Process:
    """Process of a virtual host."""

    def __init__(self, name: str, host: int) -> None:
        self.name = name
        self.host = host
        self.is_stopped = False
        self.is_dead = False
        self.backlog: list[Callable[[], None]] = []  # calls that were due while it was stopped


class World(Clock):
    """Virtual clock whose calls may belong to processes."""

    def plan(self, process: Process, time_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self.at(time_s, self._run_in, process, partial(call, *arguments))

    def later(self, process: Process, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self.plan(process, self.now_s + delay_s, call, *arguments)

    def stop_process(self, process: Process, for_s: float) -> None:
        """Stop a process as SIGSTOP does, and let it continue after `for_s`."""
        if not process.is_dead and not process.is_stopped:
            self.note(f"{process.name} is stopped for {for_s:.3f} s")
            process.is_stopped = True
            self.after(for_s, self._resume, process)

    def note(self, event: str) -> None:
        """Log an event.  Does nothing here; the fault driver's world keeps a log."""

    def _run_in(self, process: Process, call: Callable[[], None]) -> None:
        if process.is_stopped:
            process.backlog.append(call)
        elif not process.is_dead:
            call()

    def _resume(self, process: Process) -> None:
        process.is_stopped = False
        self.note(f"{process.name} goes on")
        backlog, process.backlog = process.backlog, []
        for call in backlog:
            self._run_in(process, call)


class Channel:
    """One direction of a connection.  Messages are delayed, and arrive in order."""

    def __init__(self, world: World, receiver: Process, draw_delay_s: Callable[[], float]) -> None:
        self.in_flight = 0
        self._world, self._receiver = world, receiver
        self._draw_delay_s = draw_delay_s
        self._arrival_s = -math.inf  # of the last message

    def carry(self, deliver: Callable[..., None], *arguments: Any) -> None:
        """Make this call when the message arrives."""
        self._arrival_s = max(self._arrival_s, self._world.now_s + self._draw_delay_s())
        self.in_flight += 1
        self._world.plan(self._receiver, self._arrival_s, self._arrive, partial(deliver, *arguments))

    def _arrive(self, deliver: Callable[[], None]) -> None:
        self.in_flight -= 1
        deliver()
