"""Hands trace events from the recorder to their readers (a file, the live view) in a thread of its own.

In: the events of a recorder.  Out: the same events, in batches, to every reader.
The thread wakes up four times per second.  Batches are small, because training threads wait for the GIL meanwhile.  A
reader that fails is removed; training continues.
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
BATCH = 64  # events; a reader takes about 2 microseconds for each


class EventReader(Protocol):
    """A consumer of trace events, called in the pump's thread."""

    @property
    def title(self) -> str:
        """Return the reader's name for messages."""

    def take(self, events: Sequence[TraceEvent]) -> None:
        """Read the next events; an empty batch only shows that time has passed."""

    def close(self) -> None:
        """Finish: no more events will follow."""


class EventPump:
    """A thread that hands the events of one recorder to all readers."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._readers: list[EventReader] = []
        self._lock = threading.RLock()  # held while events are handed over
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, reader: EventReader) -> None:
        """Hand all further events to this reader too.  The recorder is on while there is at least one reader."""
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
        self._hand_over()
        for reader in tuple(self._readers):
            self._call(reader, reader.close)
        self._readers = []

    def _run(self) -> None:
        while not self._ending.wait(EVERY_S):
            self._hand_over()

    def _hand_over(self) -> None:
        events = self._recorder.take()
        for start in range(0, len(events) or 1, BATCH):
            batch = events[start : start + BATCH]
            with self._lock:
                for reader in tuple(self._readers):
                    self._call(reader, functools.partial(reader.take, batch))
            time.sleep(0)  # lets a training thread run first

    def _call(self, reader: EventReader, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.remove(reader)
            log.warning("%s failed and has ended; training continues: %s", reader.title, error)
