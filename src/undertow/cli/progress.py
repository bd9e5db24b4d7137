"""Shows the progress of a long command: as a bar in a terminal, otherwise as occasional lines.

In: reports of the work.  Out: text on stderr, never on stdout; nothing at all for short work.
A thread updates the display regularly, so that the clock advances even while the work reports nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from undertow.launch.launcher_output import notify
from undertow.progress import Progress
from undertow.units import format_percent, format_seconds

WIDE = 160
BAR = 20
# Shorter work shows nothing; with its imports, such a command takes less than two seconds.
SHORT_S = 1.5
UPDATE_S = 0.25
# The shortest time between two lines about different subjects, and about the same one.
PAUSE_S, SILENCE_S = 2.0, 30.0
# With a smaller share done, the remaining time cannot be estimated.
LEAST_SHARE = 0.1

Time = Callable[[], float]


class ProgressCount(Progress):
    """Progress of one command: the share of the work that is done, and an estimate of the remaining time."""

    def __init__(self, time_s: Time = time.monotonic) -> None:
        self.text = "starting"
        self._expected = 0.0
        self._done = 0.0
        self._time_s = time_s
        self._begin_s = self._advanced_s = time_s()

    def say(self, text: str) -> None:
        self.text = text

    def expect(self, units: float) -> None:
        self._expected += units

    def advance(self, units: float = 1.0) -> None:
        self._done += units
        self._advanced_s = self._time_s()

    @property
    def age_s(self) -> float:
        return self._time_s() - self._begin_s

    @property
    def share(self) -> float | None:
        """Return the share of the work that is done; None if unknown."""
        return min(1.0, self._done / self._expected) if self._expected else None

    @property
    def left_s(self) -> float | None:
        """Estimate the remaining seconds at the pace so far; None if too little is done."""
        share = self.share
        if share is None or share < LEAST_SHARE:
            return None
        return max(0.0, (self._advanced_s - self._begin_s) / share - self.age_s)


class ProgressBar:
    """A bar in a terminal, shown unless the work is short, and removed at its end."""

    def __init__(self, count: ProgressCount, console: Console) -> None:
        self._count = count
        columns = (
            SpinnerColumn(),
            BarColumn(bar_width=BAR),
            TextColumn("{task.fields[share]:>5}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            # The last column takes the rest of the line, so that a long text is cut, not the bar.
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        )
        # Python's stdout is not redirected, because it may be a file.
        self._progress = rich.progress.Progress(
            *columns, console=console, transient=True, expand=True, redirect_stdout=False
        )
        self._task = self._progress.add_task(count.text, total=None, share="", left="")

    def update(self) -> None:
        share, left_s = self._count.share, self._count.left_s
        self._progress.update(
            self._task,
            description=self._count.text,
            total=None if share is None else 1.0,  # without a total the bar only shows that something happens
            completed=share or 0.0,
            share="" if share is None else format_percent(share),
            left="" if left_s is None else show_left(left_s),
        )
        if self._count.age_s >= SHORT_S:
            self._progress.start()

    def close(self) -> None:
        self._progress.stop()


class ProgressLines:
    """Lines for files and pipes: one for each new subject, and one after a long silence."""

    def __init__(self, count: ProgressCount, write: Callable[[str], None] = notify) -> None:
        self._count = count
        self._write = write
        self._subject = ""  # of the last line
        self._written_s = -math.inf

    def update(self) -> None:
        age_s = self._count.age_s
        subject = self._count.text.partition(":")[0]  # a bandwidth, not each of its rounds
        pause_s = PAUSE_S if subject != self._subject else SILENCE_S
        if age_s >= SHORT_S and age_s - self._written_s >= pause_s:
            self._subject, self._written_s = subject, age_s
            self._write(describe(self._count))

    def close(self) -> None:
        pass


def describe(count: ProgressCount) -> str:
    """Describe the progress in one line."""
    if count.share is None:
        return count.text
    left = "" if count.left_s is None else f", {show_left(count.left_s)}"
    return f"{count.text} ({format_percent(count.share)}{left})"


def show_left(left_s: float) -> str:
    """Describe the remaining time, in whole seconds or less precisely."""
    return f"about {format_seconds(max(1, math.ceil(left_s)))} left"


def open_console() -> Console:
    """Open a console for tables on stdout: as wide as the terminal, else wide enough that nothing is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)


@contextmanager
def open_progress() -> Iterator[Progress]:
    """Show the progress of the work inside the block."""
    count = ProgressCount()
    console = Console(stderr=True)
    # `is_interactive` is not enough: it is true for a log file if FORCE_COLOR is set, as in many CI systems.
    is_terminal = console.is_interactive and console.file.isatty()
    view = ProgressBar(count, console) if is_terminal else ProgressLines(count)
    done = threading.Event()
    updating = threading.Thread(target=_update, args=(view, done), name="undertow-progress", daemon=True)
    updating.start()
    try:
        yield count
    finally:
        done.set()
        updating.join()
        view.close()


def _update(view: ProgressBar | ProgressLines, done: threading.Event) -> None:
    while not done.wait(UPDATE_S):
        view.update()
