"""The recorder of one worker: keeps trace events in the order in which they were recorded.

In: events, from any thread.  Out: the same events, taken by the pump that passes them to their readers.
While the recorder is off, an event costs one check of `is_on`.  The clock is injected: `time.monotonic` in a worker, a
virtual clock in the simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from undertow.tracing.events import TraceEvent


class Recorder:
    """List of trace events.  Any thread may record, because appending to a list is atomic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_on = False
        self.clock = clock
        # Reason and start of a training thread's current wait, whose event is recorded when the wait is over.
        self.standstill: tuple[str, float] | None = None
        self._events: list[TraceEvent] = []
        self._is_lent = False

    def start(self) -> None:
        """Drop all events and switch recording on."""
        self._events = []
        self.is_on = True

    def stop(self) -> list[TraceEvent]:
        """Switch recording off; return the events not taken yet, and keep them."""
        self.is_on = False
        return self.events()

    def lend(self) -> Recorder:
        """Return this recorder to the first group; return an unused one to other groups, whose ranks differ."""
        is_first, self._is_lent = not self._is_lent, True
        return self if is_first else Recorder()

    def give_back(self) -> None:
        """Make this recorder available to the next group, because the group that had it is closed."""
        self._is_lent = False

    def read_clock(self) -> float:
        """Return the time at which an event begins; 0.0 while recording is off, so that callers record nothing."""
        return self.clock() if self.is_on else 0.0

    def record(self, event: TraceEvent) -> None:
        self._events.append(event)

    def take(self) -> list[TraceEvent]:
        """Return and remove the events recorded so far.  Must be called by one thread at a time."""
        events, count = self._events, len(self._events)
        taken = events[:count]
        del events[:count]  # other threads may have appended meanwhile
        return taken

    def events(self) -> list[TraceEvent]:
        """Return the events not taken yet."""
        return list(self._events)


process_recorder = Recorder()
