"""How a bench looks: the table's console, and how far it is (a bar in a terminal, a line now and then elsewhere)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from undertow.launch.speech import notify

if TYPE_CHECKING:  # `undertow plan` needs no bench
    from undertow.lab.bench.series import Watch

WIDE = 160


class _Bar:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=0)
        self._total = 0

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def expect(self, laps: int) -> None:
        self._total += laps
        self._progress.update(self._task, total=self._total)

    def lap(self) -> None:
        self._progress.advance(self._task)


class _Lines:
    """Only what is new: a bandwidth, not each of its rounds."""

    def __init__(self) -> None:
        self._last = ""

    def say(self, text: str) -> None:
        subject = text.partition(":")[0]
        if subject != self._last:
            self._last = subject
            notify(text)

    def expect(self, laps: int) -> None:
        pass

    def lap(self) -> None:
        pass


def open_console() -> Console:
    """For tables on stdout: the terminal as it is, or wide enough that nothing is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)


@contextmanager
def open_watch() -> Iterator[Watch]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (BarColumn(bar_width=30), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress)
