"""Who is told how far something is that takes its time.

In: what happens now, how much there is to do, how much of that is done.  Out: nothing.
Whoever works tells its watch and never asks it: what the user sees of it is the command line's matter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Watch(Protocol):
    """A lap is whatever takes about as long as the next one; where some take longer, they count for more."""

    def say(self, text: str) -> None:
        """What happens now: what it is about, and after a colon the details."""

    def expect(self, laps: float) -> None:
        """So many more laps are to come.  Who does not know leaves it: then nobody promises an end."""

    def lap(self, laps: float = 1.0) -> None:
        """So many of them are done."""


class _Nobody:
    def say(self, text: str) -> None:
        pass

    def expect(self, laps: float) -> None:
        pass

    def lap(self, laps: float = 1.0) -> None:
        pass


NOBODY: Watch = _Nobody()

OpenWatch = Callable[[], AbstractContextManager[Watch]]


def open_nobody() -> AbstractContextManager[Watch]:
    """For work that is done without a command line."""
    return nullcontext(NOBODY)
