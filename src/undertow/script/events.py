"""TensorBoard events of single-process scripts: rank 0 writes them.

In: what a `SummaryWriter` hands to the writer of its event file.  Out: the same on rank 0; on other ranks no file.
Until it is known whether a script knows of ranks, the others' events are held back, and written if it does or if the
process ends before that is known.  Of what is dropped the last events are kept, in case the script joins after all.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable
from typing import Any

# Of one file; while nothing is known yet, more than that is written at once.
MOST_HELD_EVENTS = 10_000


class Events:
    """The event files of one rank that is not the first."""

    def __init__(self) -> None:
        self.is_dropping = False
        self._writes = False
        self._held: list[HeldEvents] = []
        self._pid = os.getpid()

    def open(self, make: Callable[[], Any], folder: Any) -> Any:
        """In place of the writer that `make` returns."""
        if self._writes or os.getpid() != self._pid:
            return make()
        if not self._held:
            atexit.register(self._end)
        self._held.append(HeldEvents(self, make, folder))
        return self._held[-1]

    def drop(self) -> None:
        """The first rank writes."""
        self.is_dropping = True

    def write(self) -> None:
        """Every rank writes, also what was held."""
        self._writes = True
        if os.getpid() == self._pid:
            for held in self._held:
                held.write()

    def _end(self) -> None:
        """The process ends."""
        if not self.is_dropping:
            self.write()


class HeldEvents:
    """In place of the writer of one event file, which is made if its events are to be written."""

    def __init__(self, events: Events, make: Callable[[], Any], folder: Any) -> None:
        self._events = events
        self._make = make
        self._folder = folder
        self._writer: Any = None
        self._calls: deque[tuple[str, tuple[Any, ...]]] = deque(maxlen=MOST_HELD_EVENTS)

    def get_logdir(self) -> Any:
        return self._folder

    def add_event(self, event: Any) -> None:
        self._call("add_event", event)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        self._call("close")

    def reopen(self) -> None:
        self._call("reopen")

    def write(self) -> None:
        if self._writer is None:
            self._writer = self._make()
            while self._calls:
                name, arguments = self._calls.popleft()
                getattr(self._writer, name)(*arguments)
            self._writer.flush()

    def _call(self, name: str, *arguments: Any) -> None:
        if self._writer is None and not self._events.is_dropping and len(self._calls) == MOST_HELD_EVENTS:
            self.write()
        if self._writer is None:
            self._calls.append((name, arguments))
        else:
            getattr(self._writer, name)(*arguments)
