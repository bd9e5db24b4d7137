"""Virtual time; processes in it, which may be stopped or die, and what travels between them.

In: what happens to which process, and when.  Out: the same, the earliest first; ties in the order in which they came.
What happens to a stopped process happens when it goes on, in the same order; to a dead one nothing happens.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import partial
from typing import Any

DueCall = tuple[float, int, Callable[..., object], tuple[Any, ...]]  # the number breaks ties: calls are never compared


class Timetable:
    """Calls that are due at some time."""

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
    """Time that stands still while calls are made, and passes from one to the next."""

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
        """Make all calls until none is due any more."""
        due, take = self._due, heapq.heappop
        while due:
            self.now_s, _, call, arguments = take(due)
            call(*arguments)

    def stop(self) -> None:
        """Make no more calls: neither those that are due nor those that the current call leads to."""
        self._due.clear()
        self._due = []


class Process:
    def __init__(self, name: str, host: int) -> None:
        self.name = name
        self.host = host
        self.is_stopped = False
        self.is_dead = False
        self.backlog: list[Callable[[], None]] = []  # what would have happened while it was stopped


class World(Clock):
    def plan(self, process: Process, time_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self.at(time_s, self._happen, process, partial(call, *arguments))

    def later(self, process: Process, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self.plan(process, self.now_s + delay_s, call, *arguments)

    def stop_process(self, process: Process, for_s: float) -> None:
        """Stop a process as SIGSTOP does, and let it go on after a while."""
        if not process.is_dead and not process.is_stopped:
            self.note(f"{process.name} is stopped for {for_s:.3f} s")
            process.is_stopped = True
            self.after(for_s, self._go_on, process)

    def note(self, what: str) -> None:
        """Note what happens, for those who want to read it."""

    def _happen(self, process: Process, call: Callable[[], None]) -> None:
        if process.is_stopped:
            process.backlog.append(call)
        elif not process.is_dead:
            call()

    def _go_on(self, process: Process) -> None:
        process.is_stopped = False
        self.note(f"{process.name} goes on")
        backlog, process.backlog = process.backlog, []
        for call in backlog:
            self._happen(process, call)


class Channel:
    """One direction of a connection.  Each message takes a while; all arrive in order."""

    def __init__(self, world: World, receiver: Process, draw_delay_s: Callable[[], float]) -> None:
        self.on_the_way = 0
        self._world, self._receiver = world, receiver
        self._draw_delay_s = draw_delay_s
        self._arrival_s = -math.inf  # of the last message

    def carry(self, deliver: Callable[..., None], *arguments: Any) -> None:
        """Make this call when the message arrives."""
        self._arrival_s = max(self._arrival_s, self._world.now_s + self._draw_delay_s())
        self.on_the_way += 1
        self._world.plan(self._receiver, self._arrival_s, self._arrive, partial(deliver, *arguments))

    def _arrive(self, deliver: Callable[[], None]) -> None:
        self.on_the_way -= 1
        deliver()
