"""TensorBoard events of single-process scripts: only rank 0 writes them.

In: events that a `SummaryWriter` passes to the writer of its event file.  Out: the same on rank 0; on other ranks no
file.
Until it is known whether a script knows of ranks, the events of other ranks are held.  They are written if it does, or
if the process ends before that is known.  The most recent dropped events are kept in case the script joins the other
workers itself later; a message then reports how many older events are lost.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

# Limits per file.  A rank that exceeds one before it is known whether the script knows of ranks writes all its events.
MOST_HELD_EVENTS = 10_000
MOST_HELD_BYTES = 16 << 20  # images and histograms are large


class EventFiles:
    """The event files of a rank other than 0."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.is_dropping = False
        self._writes = False
        self._held: list[HeldEventFile] = []
        self._pid = os.getpid()

    def open(self, make: Callable[[], Any], folder: Any) -> Any:
        """Return a stand-in for the writer that `make` returns."""
        if self._writes or os.getpid() != self._pid:
            return make()
        if not self._held:
            atexit.register(self._end)
        self._held.append(HeldEventFile(self, make, folder))
        return self._held[-1]

    def drop(self) -> None:
        """Drop held and later events, because rank 0 writes them."""
        self.is_dropping = True

    def write(self) -> None:
        """Write held and later events, because every rank writes its own files."""
        self._writes = True
        if os.getpid() == self._pid:
            for held in self._held:
                held.write()

    def _end(self) -> None:
        """Write the held events at the end of the process."""
        if not self.is_dropping:
            self.write()


class HeldEventFile:
    """A stand-in for the writer of one event file; the writer is made only if the events are to be written."""

    def __init__(self, events: EventFiles, make: Callable[[], Any], folder: Any) -> None:
        self._events = events
        self._make = make
        self._folder = folder
        self._lock = threading.RLock()  # guards the fields below: several threads may log
        self._writer: Any = None
        self._calls: deque[_Call] = deque()
        self._bytes = 0  # in these calls
        self._lost = 0  # calls that are no longer kept

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
        with self._lock:
            if self._writer is None:
                self._report_lost()
                self._writer = self._make()
                while self._calls:
                    self._calls.popleft().run(self._writer)
                self._writer.flush()

    def _call(self, name: str, *arguments: Any) -> None:
        call = _Call(name, arguments)
        with self._lock:
            if self._writer is None and not self._events.is_dropping and self._is_too_much(call):
                self.write()
            if self._writer is None:
                self._keep(call)
            else:
                call.run(self._writer)

    def _keep(self, call: _Call) -> None:
        while self._calls and self._is_too_much(call):
            self._bytes -= self._calls.popleft().size_bytes
            self._lost += 1
        self._calls.append(call)
        self._bytes += call.size_bytes

    def _is_too_much(self, call: _Call) -> bool:
        return len(self._calls) >= MOST_HELD_EVENTS or self._bytes + call.size_bytes > MOST_HELD_BYTES

    def _report_lost(self) -> None:
        if self._lost:
            events = "event" if self._lost == 1 else f"{self._lost} events"
            print(
                f"undertow: rank {self._events.rank} has lost the first {events} for {self._folder}: more than "
                f"{MOST_HELD_EVENTS} events, or {MOST_HELD_BYTES >> 20} MB, were logged before the script joined the "
                "other workers. Make the optimizer after joining",
                file=sys.stderr,
                flush=True,
            )


class _Call:
    """A call of a writer's method."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self._name = name
        self._arguments = arguments
        self.size_bytes = sum(one.ByteSize() for one in arguments if hasattr(one, "ByteSize"))

    def run(self, writer: Any) -> None:
        getattr(writer, self._name)(*self._arguments)
