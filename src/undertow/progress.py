"""Progress of long work, which reports it without knowing how it is shown.

In: what happens now, how many units of work there are, how many of them are done.  Out: nothing.
Work reports and never asks: the command line decides what the user sees of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext


class Progress:
    """Receiver of progress reports, which shows nothing unless a subclass does.

    All units take about equally long; longer work counts as several units.
    """

    def say(self, text: str) -> None:
        """Report what happens now: its subject, and after a colon the details."""

    def expect(self, units: float) -> None:
        """Add units to the work ahead.  If the total is unknown, do not call this: then no remaining time is shown."""

    def advance(self, units: float = 1.0) -> None:
        """Report that units of work are done."""


SILENT = Progress()

OpenProgress = Callable[[], AbstractContextManager[Progress]]


def open_silently() -> AbstractContextManager[Progress]:
    """Open a progress that shows nothing, for work without a command line."""
    return nullcontext(SILENT)
