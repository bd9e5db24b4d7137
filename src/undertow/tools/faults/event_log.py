"""Case of one run: its seed, its random numbers, the log of its events, and the error if a claim does not hold.

In: events.  Out: lines of text, formatted only when they are read, because most runs break nothing.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from undertow.engine.coordinator import messages
from undertow.engine.core.frames import Header, Kind
from undertow.errors import Garbled, UndertowError

SHOWN_EVENTS = 80  # the last ones, which led to the failure


class _Note(NamedTuple):
    """Event in words."""

    text: str
    is_routine: bool


class _Delivery(NamedTuple):
    """Arrival of a frame; without a header, the end of the link."""

    sender: int
    receiver: int
    header: Header | None
    message: Any

    @property
    def is_routine(self) -> bool:
        return self.header is not None and self.header.kind is Kind.HEARTBEAT

    @property
    def text(self) -> str:
        ends = f"{self.sender} -> {self.receiver}"
        if self.header is None:
            return f"{ends} the end of the link"
        if self.message is not None:
            return f"{ends} {_read_message(self.message)}"
        header = self.header
        return f"{ends} {header.kind.name} key {header.key} round {header.step}, {header.length} bytes"


class Broken(UndertowError):
    """Error: a claim did not hold.  Carries the log of the run."""

    def __init__(self, claim: str, log: EventLog) -> None:
        super().__init__(claim)
        self.claim = claim
        self.log = log


class EventLog:
    """Log of a run's events."""

    def __init__(self) -> None:
        self._events: list[_Note | _Delivery] = []

    def __len__(self) -> int:
        return len(self._events)

    def note(self, event: str, *, is_routine: bool = False) -> None:
        self._events.append(_Note(event, is_routine))

    def begin_again(self) -> None:
        """Drop all events so far: they belong to a rehearsal."""
        self._events.clear()

    def note_delivery(self, sender: int, receiver: int, header: Header | None, body: Any) -> None:
        """Note that a frame has arrived; without a header, that the link has ended."""
        is_message = header is not None and header.kind is Kind.CONTROL
        self._events.append(_Delivery(sender, receiver, header, body if is_message else None))

    def lines(self) -> list[str]:
        return [event.text for event in self._events]

    def last_lines(self) -> list[str]:
        """Return the first event and the last ones, without heartbeats and other routine."""
        lines = [event.text for event in self._events if not event.is_routine]
        left_out = len(lines) - SHOWN_EVENTS - 1
        return lines if left_out <= 0 else [lines[0], f"... {left_out} events ...", *lines[-SHOWN_EVENTS:]]


def _read_message(body: Any) -> str:
    try:
        return repr(messages.decode(body))
    except Garbled:
        return f"a garbled message of {len(body)} bytes"


class _Listener(logging.Handler):
    def __init__(self, events: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        self._events.note(f"log: {self.format(record)}")


@contextmanager
def captured_logging(events: EventLog) -> Iterator[None]:
    """Log the engine's warnings as events, and nowhere else."""
    log = logging.getLogger("undertow")
    listener, propagates = _Listener(events), log.propagate
    log.addHandler(listener)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(listener)
        log.propagate = propagates


@dataclass(frozen=True)
class Case:
    """Seed, random numbers and log of a run.

    `dice` belong to the scenario.  A cluster makes its own from the same seed, so that a run with a fault equals the
    run without it up to the event of the fault.
    """

    seed: int
    dice: random.Random
    log: EventLog = field(default_factory=EventLog)
