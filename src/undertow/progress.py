"""Progress reports of long work, independent of how they are shown.

In: the current activity, the number of units of work, the number of units done.  Out: nothing.
The command line decides what the user sees.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext


class Progress:
    """Receiver of progress reports.  This base class shows nothing.

    All units should take about the same time; longer work counts as several units.
    """

    def say(self, text: str) -> None:
        """Report the current activity: its subject and, after a colon, details."""

    def expect(self, units: float) -> None:
        """Add units to the total.  If the total is unknown, do not call this, and no remaining time is shown."""

    def advance(self, units: float = 1.0) -> None:
        """Report that units of work are done."""


SILENT = Progress()

OpenProgress = Callable[[], AbstractContextManager[Progress]]


def open_silently() -> AbstractContextManager[Progress]:
    """Return a context with a `Progress` that shows nothing, for work without a command line."""
    return nullcontext(SILENT)
