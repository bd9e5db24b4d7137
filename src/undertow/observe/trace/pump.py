"""Carries trace events from the recorder to their readers, beside the training: to a file, to the live view.

In: the events of a recorder.  Out: the same events, a few at a time, to every reader.
One thread wakes a few times per second.  It hands the events over in small batches, because the training threads wait
for Python's lock meanwhile.  A reader that fails is removed, and the training goes on.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from undertow.tracing.events import TraceEvent
from undertow.tracing.recorder import Recorder

log = logging.getLogger("undertow")

EVERY_S = 0.25
# A reader takes about 2 microseconds for each.
BATCH = 64


class EventReader(Protocol):
    """A consumer of trace events, called in the pump's thread."""

    @property
    def title(self) -> str:
        """Return what a user would call it."""

    def take(self, events: Sequence[TraceEvent]) -> None:
        """Read the next events.  There may be none: then only time has passed."""

    def close(self) -> None:
        """Finish: there will be no more events."""


class EventPump:
    """A thread that hands the events of one recorder to all readers."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._readers: list[EventReader] = []
        self._lock = threading.RLock()  # held while events are handed over
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, reader: EventReader) -> None:
        """Hand all further events to this reader too; the recorder is on as long as there is a reader."""
        with self._lock:
            self._readers.append(reader)
        self._recorder.is_on = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="undertow-events", daemon=True)
            self._thread.start()

    def remove(self, reader: EventReader) -> None:
        with self._lock:
            if reader in self._readers:
                self._readers.remove(reader)
            if not self._readers:
                self._recorder.is_on = False

    def close(self) -> None:
        """Hand over the remaining events and close all readers.  A second call does nothing."""
        if self._thread is None:
            return
        self._ending.set()
        self._thread.join()
        self._thread = None
        self._recorder.is_on = False
        self._carry()
        for reader in tuple(self._readers):
            self._attempt(reader, reader.close)
        self._readers = []

    def _run(self) -> None:
        while not self._ending.wait(EVERY_S):
            self._carry()

    def _carry(self) -> None:
        events = self._recorder.take()
        for start in range(0, len(events) or 1, BATCH):
            batch = events[start : start + BATCH]
            with self._lock:
                for reader in tuple(self._readers):
                    self._attempt(reader, functools.partial(reader.take, batch))
            time.sleep(0)  # lets a training thread run first

    def _attempt(self, reader: EventReader, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.remove(reader)
            log.warning("%s ends here, the training goes on: %s", reader.title, error)
