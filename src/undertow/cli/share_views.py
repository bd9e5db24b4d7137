"""How `undertow share status` shows what it sees: redrawn in a terminal, one table after the other in a file, as JSON.

In: one `Status` after the other.  Out: text on stdout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.live import Live

from undertow.cli.progress import open_console
from undertow.crossover.messages import Status
from undertow.plain_text import clean_json
from undertow.report.sharing import make_status

REDRAW_S = 1.0
# In a log file: often enough to follow, seldom enough to read.
PRINT_S = 5.0


@dataclass(frozen=True)
class View:
    show: Callable[[Status], None]
    pause_s: float  # between two


@contextmanager
def open_view(path: Path, *, is_watched: bool) -> Iterator[View]:
    console = open_console()
    if not (is_watched and console.is_terminal):
        yield View(lambda status: console.print(make_status(status, path)), PRINT_S)
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        yield View(lambda status: live.update(make_status(status, path), refresh=True), REDRAW_S)


@contextmanager
def open_json_view() -> Iterator[View]:
    """One line each."""
    yield View(lambda status: print(clean_json(msgspec.json.encode(status)), flush=True), REDRAW_S)
