"""The dashboard's screen: draws frames on a terminal until the job is over, then leaves the last one there.

In: pictures of the job; what the launcher says meanwhile.  Out: frames.
On the terminal's other screen, where every frame starts at the top: whatever a resize does to the old one is gone.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live

from undertow.launch.speech import divert, say
from undertow.live.board import Picture
from undertow.live.terminal import draw

EVERY_S = 0.5


def find_terminal(environ: Mapping[str, str]) -> int | None:
    """Where a dashboard can be drawn: stderr or stdout; None if neither is a terminal that can."""
    if environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return None
    return next((fd for fd in (2, 1) if os.isatty(fd)), None)


class Screen:
    """A view; see `show`.  `start` takes the terminal, `finish` gives it back."""

    every_s = EVERY_S

    def __init__(self, fd: int) -> None:
        # A copy: whoever closes the stream at the end must not close the launcher's own.
        self._file = os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="replace")
        self._console = Console(file=self._file, force_terminal=True, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console, auto_refresh=False, screen=True, redirect_stdout=False, redirect_stderr=False
        )
        self._lock = threading.Lock()
        self._notices: list[str] = []

    def start(self) -> None:
        divert(self._hear)
        self._live.start()

    def show(self, picture: Picture) -> None:
        width, height = self._console.size
        with self._lock:
            notices = list(self._notices)
        self._live.update(draw(picture, width=width, height=height, notices=notices), refresh=True)

    def finish(self, picture: Picture) -> None:
        self._live.stop()
        width, height = self._console.size
        self._console.print(draw(picture, width=width, height=height))
        self._file.flush()

    def is_stuck(self) -> bool:
        return not select.select([], [self._file], [], 0)[1]

    def release(self) -> None:
        """The launcher speaks for itself again, beginning with what nobody may have read; also after a hang."""
        divert(None)
        with self._lock:
            notices, self._notices = self._notices, []
        if notices:
            say(*notices)

    def _hear(self, lines: Sequence[str]) -> None:
        with self._lock:
            self._notices += lines
