"""What happened in a run, event by event, and how it ends when a claim does not hold.

In: events.  Out: lines to read, made only when somebody reads them: most runs go well.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from undertow.coordinator import messages
from undertow.core.frames import Header, Kind
from undertow.errors import Garbled, UndertowError

TOLD_EVENTS = 80  # the last ones: what led to a failure is near its end

_Delivery = tuple[int, int, Header | None, Any]


class Broken(UndertowError):
    """A claim that did not hold, and the story that led there."""

    def __init__(self, claim: str, story: Story) -> None:
        super().__init__(claim)
        self.claim = claim
        self.story = story


class Story:
    def __init__(self) -> None:
        self._events: list[str | _Delivery] = []

    def __len__(self) -> int:
        return len(self._events)

    def tell(self, event: str) -> None:
        self._events.append(event)

    def begin_again(self) -> None:
        """What was told so far was only a rehearsal."""
        self._events.clear()

    def tell_delivery(self, sender: int, receiver: int, header: Header | None, body: Any) -> None:
        """A frame has arrived, or, without a header, the news that the link is gone."""
        is_message = header is not None and header.kind is Kind.CONTROL
        self._events.append((sender, receiver, header, body if is_message else None))

    def lines(self) -> list[str]:
        """All of it."""
        return [event if isinstance(event, str) else _describe(*event) for event in self._events]

    def last_lines(self) -> list[str]:
        """How it began, and how it ended; without the signs of life in between."""
        lines = [line for line in self.lines() if not _is_routine(line)]
        left_out = len(lines) - TOLD_EVENTS - 1
        return lines if left_out <= 0 else [lines[0], f"... {left_out} events ...", *lines[-TOLD_EVENTS:]]


def _describe(sender: int, receiver: int, header: Header | None, body: Any) -> str:
    if header is None:
        return f"{sender} -> {receiver} the end of the link"
    if body is not None:
        return f"{sender} -> {receiver} {_read_message(body)}"
    return f"{sender} -> {receiver} {header.kind.name} key {header.key} round {header.step}, {header.length} bytes"


def _is_routine(line: str) -> bool:
    return " HEARTBEAT " in line or line.startswith(("it is ", "the engine of "))


def _read_message(body: Any) -> str:
    try:
        return repr(messages.decode(body))
    except Garbled:
        return f"a message that makes no sense, {len(body)} bytes"


class _Listener(logging.Handler):
    def __init__(self, story: Story) -> None:
        super().__init__(logging.WARNING)
        self._story = story

    def emit(self, record: logging.LogRecord) -> None:
        self._story.tell(f"log: {self.format(record)}")


@contextmanager
def listening(story: Story) -> Iterator[None]:
    """What the engine logs becomes a part of the story, and goes nowhere else."""
    log = logging.getLogger("undertow")
    listener, propagates = _Listener(story), log.propagate
    log.addHandler(listener)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(listener)
        log.propagate = propagates
