"""How a training thread waits for the engine: until done, or until the group fails.

A wait never hangs in silence: it says after a while whom it waits for, and gives
up after the stall timeout.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from undertow.core.flow import Contribution
from undertow.errors import UndertowError
from undertow.trace import notes
from undertow.trace.recorder import Recorder, here

# Later than the silence timeout: until then nobody can be called alive.
FIRST_NOTICE_S = 20.0
LONGEST_PAUSE_S = 300.0


def notice_pauses() -> Iterator[float]:
    """How long a wait is silent before it says whom it waits for, and before it does so again."""
    pause_s = FIRST_NOTICE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


# To hand the device over and get it back takes about as long.
KEEP_TURN_S = 0.0005


class Pausing(Protocol):
    """Who knows what else the device could do."""

    def waiting(self) -> AbstractContextManager[None]:
        """Inside of the block the device is free; afterwards it is as before."""


class Waiters:
    """The training threads that wait, and the first error, which ends all waits."""

    def __init__(self, stall_timeout_s: float, on_stall: Callable[[float], None], recorder: Recorder = here) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._on_stall = on_stall
        self._recorder = recorder
        self._lock = threading.Lock()
        self._error: UndertowError | None = None
        self._events: set[threading.Event] = set()
        self._turn: Pausing | None = None

    @property
    def error(self) -> UndertowError | None:
        return self._error

    def fail(self, error: UndertowError) -> bool:
        """Keep the first error and wake everyone.  False if there was one already."""
        with self._lock:
            if self._error is not None:
                return False
            self._error = error
            for event in self._events:
                event.set()
        return True

    def abandon(self, error: UndertowError) -> None:
        """For a group that is no more, or in a forked child: nothing will ever come.

        The lock may be held by a thread that is not there.
        """
        self._lock = threading.Lock()
        self._error = error

    def check(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    def wait_for(self, ticket: Ticket, reason: str = "", *, tensor: str = "") -> None:
        """Return when all its answers are here; raise the group's error if it fails first."""
        if not ticket.is_done or self._error is not None:
            self.wait(ticket.done, reason, tensor=tensor)

    def share(self, turn: Pausing) -> None:
        """From now on whoever waits does not keep the device meanwhile."""
        self._turn = turn

    def wait(self, event: threading.Event, reason: str = "", *, tensor: str = "") -> None:
        """Return when the event is set; raise the group's error if it fails first.

        The reason, or the tensor at whose gate this is, is for those who look on.
        """
        if event.is_set() and self._error is None:
            return
        with self._wakes(event), self._noted(reason, tensor):
            if self._turn is None:
                self._wait(event)
            elif not event.wait(KEEP_TURN_S):
                with self._turn.waiting():
                    self._wait(event)

    def wait_within(self, event: threading.Event, timeout_s: float) -> bool:
        """Whether the event is set in this time; raise the group's error if it fails first."""
        with self._wakes(event):
            return event.wait(timeout_s)

    @contextmanager
    def _wakes(self, event: threading.Event) -> Iterator[None]:
        """Inside of the block an error sets the event; it is raised before and after."""
        with self._lock:
            if self._error is None:
                self._events.add(event)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._events.discard(event)
        self.check()

    @contextmanager
    def _noted(self, reason: str, tensor: str) -> Iterator[None]:
        """Inside of the block a training thread stands still."""
        if not self._recorder.is_on:
            yield
            return
        since_s = self._recorder.clock()
        self._recorder.standstill = tensor or reason, since_s
        try:
            yield
        finally:
            self._recorder.standstill = None
            self._recorder.note(notes.Waited(since_s, self._recorder.clock(), reason, tensor))

    def _wait(self, event: threading.Event) -> None:
        since = time.monotonic()
        waited, pauses = 0.0, notice_pauses()
        while not event.wait(min(next(pauses), self._stall_timeout_s - waited)):
            waited = time.monotonic() - since
            if waited >= self._stall_timeout_s:
                raise UndertowError(
                    f"nothing has come for {waited:.0f} s although all workers are alive; see the warnings above for "
                    "who is late. Set UNDERTOW_STALL_TIMEOUT to wait longer"
                )
            self._on_stall(waited)


class Ticket:
    """A number of answers to come.  The engine counts down, training threads wait."""

    _making = threading.Lock()

    def __init__(self, count: int, on_done: Callable[[], None] | None = None) -> None:
        self.absent = False  # some worker had joined and took no part
        self._left = count
        self._on_done = on_done  # called in the engine thread, after the last answer
        self._event: threading.Event | None = None  # there is one only if somebody had to wait

    @property
    def is_done(self) -> bool:
        return not self._left

    @property
    def done(self) -> threading.Event:
        """Set when the last answer is here."""
        with self._making:
            event = self._event = self._event or threading.Event()
        # The engine counts before it looks for the event, so one of the two sets it.
        if not self._left:
            event.set()
        return event

    def answer(self, contribution: Contribution) -> None:
        """One answer is here.  Called in the engine thread only."""
        self.absent |= contribution.absent
        self._left -= 1
        if not self._left:
            if self._event is not None:
                self._event.set()
            on_done, self._on_done = self._on_done, None  # it leads back to whoever holds the ticket
            if on_done is not None:
                on_done()
