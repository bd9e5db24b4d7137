"""The record of one worker: notes in the order in which they were made.

In: notes, from any thread.  Out: the same, taken away by whoever writes them down.
Off, it costs one look at `is_on` where something could be noted.  The clock is the noter's: `time.monotonic` in a
worker, a virtual one in the simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from undertow.trace.notes import Note


class Recorder:
    """Any thread may note: to append to a list is atomic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_on = False
        self.clock = clock
        # What a training thread stands still for right now, and since when: a note is made when that is over.
        self.standstill: tuple[str, float] | None = None
        self._notes: list[Note] = []
        self._is_lent = False

    def start(self) -> None:
        """Begin a new record."""
        self._notes = []
        self.is_on = True

    def stop(self) -> list[Note]:
        """End the record; returns what was not taken yet, and keeps it."""
        self.is_on = False
        return self.notes()

    def lend(self) -> Recorder:
        """For a group's engine: the first one asks for this record; further ones have peers of other numbers."""
        is_first, self._is_lent = not self._is_lent, True
        return self if is_first else Recorder()

    def give_back(self) -> None:
        """That group is no more."""
        self._is_lent = False

    def note(self, note: Note) -> None:
        self._notes.append(note)

    def take(self) -> list[Note]:
        """What was noted since this was asked last.  One thread at a time."""
        notes, count = self._notes, len(self._notes)
        taken = notes[:count]
        del notes[:count]  # what came meanwhile stays
        return taken

    def notes(self) -> list[Note]:
        """What waits to be taken."""
        return list(self._notes)


# Of this process.
here = Recorder()
