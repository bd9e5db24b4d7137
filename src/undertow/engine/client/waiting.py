"""Waits of training threads for the engine, which end with an answer or with the group's error.

A wait never hangs silently: after a while it names the ranks that it waits for, and it gives up after the stall
timeout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from undertow.engine.core.flow import Contribution
from undertow.errors import UndertowError, recast
from undertow.tracing import events
from undertow.tracing.recorder import Recorder, process_recorder

# Longer than the silence timeout: before that it is not certain which ranks are alive.
FIRST_NOTICE_S = 20.0
LONGEST_PAUSE_S = 300.0


def notice_pauses() -> Iterator[float]:
    """Yield the pauses between the warnings of a wait, starting with the pause before the first one."""
    pause_s = FIRST_NOTICE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


# About the time that it takes to hand the device over and to get it back.
KEEP_TURN_S = 0.0005


class Pausing(Protocol):
    """Turn on a shared device, which other jobs may use while this worker waits."""

    def waiting(self) -> AbstractContextManager[None]:
        """Free the device within the block; get it back afterwards."""


class Waiters:
    """Waiting training threads of one group, and the first error, which ends all waits."""

    def __init__(
        self, stall_timeout_s: float, on_stall: Callable[[float], None], recorder: Recorder = process_recorder
    ) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._on_stall = on_stall
        self._recorder = recorder
        self._lock = threading.Lock()
        self.error: UndertowError | None = None  # the first one
        self._events: set[threading.Event] = set()
        self._turn: Pausing | None = None

    def fail(self, error: UndertowError) -> bool:
        """Keep the first error and wake all threads; return False if there was an error already."""
        with self._lock:
            if self.error is not None:
                return False
            self.error = error
            for event in self._events:
                event.set()
        return True

    def abandon(self, error: UndertowError) -> None:
        """Make all waits fail, in a forked child or after the group was left: no answer will ever arrive.

        The lock is replaced, because in a forked child it may be held by a thread that does not exist there.
        """
        self._lock = threading.Lock()
        self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise recast(self.error, type(self.error))

    def wait_for(self, ticket: Ticket, reason: str = "", *, tensor: str = "") -> None:
        """Wait until all answers of the ticket have arrived; raise the group's error if it fails first."""
        if not ticket.is_done or self.error is not None:
            self.wait(ticket.done, reason, tensor=tensor)

    def share(self, turn: Pausing) -> None:
        """Free the device during all later waits."""
        self._turn = turn

    def wait(self, event: threading.Event, reason: str = "", *, tensor: str = "") -> None:
        """Wait until the event is set; raise the group's error if it fails first.

        The reason, or the name of the tensor whose gate waits, is for traces and the live view.
        """
        if event.is_set() and self.error is None:
            return
        with self._woken_by_errors(event), self._recorded(reason, tensor):
            if self._turn is None:
                self._wait(event)
            elif not event.wait(KEEP_TURN_S):
                with self._turn.waiting():
                    self._wait(event)

    def wait_within(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for the event; return False after the timeout.  Raise the group's error if it fails first."""
        with self._woken_by_errors(event):
            return event.wait(timeout_s)

    @contextmanager
    def _woken_by_errors(self, event: threading.Event) -> Iterator[None]:
        """Let the group's error set the event within the block; raise the error before and after the block."""
        with self._lock:
            if self.error is None:
                self._events.add(event)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._events.discard(event)
        self.check()

    @contextmanager
    def _recorded(self, reason: str, tensor: str) -> Iterator[None]:
        """Record that a training thread waits within the block."""
        if not self._recorder.is_on:
            yield
            return
        since_s = self._recorder.clock()
        self._recorder.standstill = tensor or reason, since_s
        try:
            yield
        finally:
            self._recorder.standstill = None
            self._recorder.record(events.Waited(since_s, self._recorder.clock(), reason, tensor))

    def _wait(self, event: threading.Event) -> None:
        since = time.monotonic()
        waited, pauses = 0.0, notice_pauses()
        while not event.wait(min(next(pauses), self._stall_timeout_s - waited)):
            waited = time.monotonic() - since
            if waited >= self._stall_timeout_s:
                raise UndertowError(
                    f"nothing has arrived for {waited:.0f} s although all workers are alive; the warnings above name "
                    "the late ones. Set UNDERTOW_STALL_TIMEOUT to wait longer"
                )
            self._on_stall(waited)


class Ticket:
    """Countdown of expected answers, for which training threads can wait.

    All answers of one ticket must come from the same thread: the engine thread or, if torch's process group computes
    the sum, the torch thread in which the collective ends.
    """

    _making = threading.Lock()

    def __init__(self, count: int, on_done: Callable[[], None] | None = None) -> None:
        self.absent = False  # a worker had run out of input and did not contribute
        self._left = count
        self._on_done = on_done  # called after the last answer, in its thread; must not wait
        self._event: threading.Event | None = None  # created only if a thread had to wait

    @property
    def is_done(self) -> bool:
        return not self._left

    @property
    def done(self) -> threading.Event:
        """Event that is set once the last answer has arrived."""
        with self._making:
            event = self._event = self._event or threading.Event()
        # `answer` counts down before it checks for the event, so one of the two sets it.
        if not self._left:
            event.set()
        return event

    def answer(self, contribution: Contribution) -> None:
        """Count one answer.  Must not be called by two threads at once."""
        assert self._left > 0, "more answers than the ticket expects"
        self.absent |= contribution.absent
        self._left -= 1
        if not self._left:
            if self._event is not None:
                self._event.set()
            on_done, self._on_done = self._on_done, None  # it refers to the owner of the ticket
            if on_done is not None:
                on_done()
