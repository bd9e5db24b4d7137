"""Timers of the engine's loop, which fire when a test says so."""

from __future__ import annotations

from collections.abc import Callable


class Timers:
    """A loop of which only the timers are needed; `fire` runs what is due."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.due.append(call)

    def fire(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()
