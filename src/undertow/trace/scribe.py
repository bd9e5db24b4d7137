"""Carries notes away from the recorder, beside the training: to a file, to whoever shows them live.

In: the notes of a recorder.  Out: the same, a few at a time, to every reader.
A thread of its own wakes a few times per second; what it does is cut into small pieces, because whoever trains waits
for Python's lock meanwhile.  A reader that fails is told no more, and the training goes on.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from undertow.trace.notes import Note
from undertow.trace.recorder import Recorder

log = logging.getLogger("undertow")

EVERY_S = 0.25
# A reader takes about 2 microseconds for each.
PIECE = 64


class Reader(Protocol):
    @property
    def title(self) -> str:
        """What a user would call it."""

    def take(self, notes: Sequence[Note]) -> None:
        """These were noted next; called in the scribe's thread.  Empty now and then: time has passed."""

    def close(self) -> None:
        """That was all."""


class Scribe:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._readers: list[Reader] = []
        self._lock = threading.RLock()  # held by whoever carries notes
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, reader: Reader) -> None:
        """From now on it gets what is noted; the recorder is on as long as there is one."""
        with self._lock:
            self._readers.append(reader)
        self._recorder.is_on = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="undertow-scribe", daemon=True)
            self._thread.start()

    def remove(self, reader: Reader) -> None:
        """It wants no more."""
        with self._lock:
            if reader in self._readers:
                self._readers.remove(reader)
            if not self._readers:
                self._recorder.is_on = False

    def close(self) -> None:
        """Hand over the rest.  A second call does nothing."""
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
        notes = self._recorder.take()
        for start in range(0, len(notes) or 1, PIECE):
            piece = notes[start : start + PIECE]
            with self._lock:
                for reader in tuple(self._readers):
                    self._attempt(reader, functools.partial(reader.take, piece))
            time.sleep(0)  # whoever trains goes first

    def _attempt(self, reader: Reader, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.remove(reader)
            log.warning("%s ends here, the training goes on: %s", reader.title, error)
