"""How a job is wound down, without processes: decides which signal is due, and when.

In: a worker failed, another host failed, the user interrupted, time passes.
Out: the signal that all living workers get now, or None.
After a failure the others may end by themselves first: their own words (who was
lost, and where) are worth more than a signal.  After an interrupt they are asked
at once.  Whoever does not end in time is killed; a second interrupt kills at once.
"""

from __future__ import annotations

import enum
import signal

FAILURE_GRACE_S = 2.0
ASK_GRACE_S = 1.0


class Phase(enum.Enum):
    RUNNING = "running"
    GRACE = "grace"  # somebody failed; the others may still end by themselves
    ASKED = "asked"  # everybody has got a signal
    KILLED = "killed"


class Shutdown:
    """The phases of one job; they only go forward."""

    def __init__(self) -> None:
        self.phase = Phase.RUNNING
        self.interrupted_by: signal.Signals | None = None
        self.deadline_s: float | None = None  # when `due` has something to say; set in GRACE and ASKED only

    def fail(self, now_s: float) -> None:
        """A worker ended badly by itself."""
        if self.phase is Phase.RUNNING:
            self._enter(Phase.GRACE, now_s + FAILURE_GRACE_S)

    def end(self, now_s: float) -> signal.Signals | None:
        """Another host has failed, which the workers here cannot know; returns the signal to pass on."""
        if self.phase not in (Phase.RUNNING, Phase.GRACE):
            return None
        self._enter(Phase.ASKED, now_s + ASK_GRACE_S)
        return signal.SIGTERM

    def interrupt(self, signum: signal.Signals, now_s: float) -> signal.Signals:
        """The user wants an end; returns the signal to pass on."""
        if self.interrupted_by is not None or self.phase is Phase.KILLED:
            self._enter(Phase.KILLED, None)
            return signal.SIGKILL
        self.interrupted_by = signum
        self._enter(Phase.ASKED, now_s + ASK_GRACE_S)
        return signum

    def due(self, now_s: float) -> signal.Signals | None:
        """The next step, if its time has come."""
        if self.deadline_s is None or now_s < self.deadline_s:
            return None
        if self.phase is Phase.GRACE:
            self._enter(Phase.ASKED, now_s + ASK_GRACE_S)
            return signal.SIGTERM
        self._enter(Phase.KILLED, None)
        return signal.SIGKILL

    @property
    def has_signalled(self) -> bool:
        """Whether a worker that ends now may have been ended by us."""
        return self.phase in (Phase.ASKED, Phase.KILLED)

    def _enter(self, phase: Phase, deadline_s: float | None) -> None:
        self.phase, self.deadline_s = phase, deadline_s
