"""TensorBoard events of single-process scripts: rank 0 writes them.

In: what a `SummaryWriter` hands to the writer of its event file.  Out: the same on rank 0; on other ranks no file.
Until it is known whether a script knows of ranks, the others' events are held back, and written if it does or if the
process ends before that is known.  Of what is dropped the last events are kept, in case the script joins after all;
how many of the first are gone is said then.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

# Of one file; while nothing is known yet, more than that is written at once.
MOST_HELD_EVENTS = 10_000
MOST_HELD_BYTES = 16 << 20  # images and histograms are large


class Events:
    """The event files of one rank that is not the first."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
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
        self._lock = threading.RLock()  # of all below: several threads may log
        self._writer: Any = None
        self._calls: deque[_Call] = deque()
        self._bytes = 0  # of these
        self._cut = 0  # calls that are not kept any more

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
                self._say_cut()
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
            self._cut += 1
        self._calls.append(call)
        self._bytes += call.size_bytes

    def _is_too_much(self, call: _Call) -> bool:
        return len(self._calls) >= MOST_HELD_EVENTS or self._bytes + call.size_bytes > MOST_HELD_BYTES

    def _say_cut(self) -> None:
        if self._cut:
            events = "event" if self._cut == 1 else f"{self._cut} events"
            print(
                f"undertow: rank {self._events.rank} has not kept the first {events} for {self._folder}: more than "
                f"{MOST_HELD_EVENTS} events, or {MOST_HELD_BYTES >> 20} MB, came before the script joined the other "
                "workers. Make the optimizer after that",
                file=sys.stderr,
                flush=True,
            )


class _Call:
    """One call of a writer's method."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self._name = name
        self._arguments = arguments
        self.size_bytes = sum(one.ByteSize() for one in arguments if hasattr(one, "ByteSize"))

    def run(self, writer: Any) -> None:
        getattr(writer, self._name)(*self._arguments)
