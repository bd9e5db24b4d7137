"""What a user sees of work that takes its time: a bar in a terminal, a line now and then elsewhere.

In: what the work tells its watch.  Out: text on stderr, never on stdout; nothing at all of work that is short.
A thread looks at the watch every now and then, so that also work that has nothing to tell for a while is seen.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from undertow.launch.speech import notify
from undertow.watch import Watch

WIDE = 160
BAR = 20
# With the imports before it a command that shows nothing has taken less than two seconds.
SHORT_S = 1.5
LOOK_S = 0.25
# Between two lines, at least if they are about something else, and at most.
PAUSE_S, SILENCE_S = 2.0, 30.0
# With less done than this nobody can say how long the rest takes.
TELLING = 0.1

Time = Callable[[], float]


class Account:
    """The watch: how much is done of how much, and how long the rest may take."""

    def __init__(self, time_s: Time = time.monotonic) -> None:
        self.text = "starting"
        self._expected = 0.0
        self._done = 0.0
        self._time_s = time_s
        self._begin_s = self._lap_s = time_s()

    def say(self, text: str) -> None:
        self.text = text

    def expect(self, laps: float) -> None:
        self._expected += laps

    def lap(self, laps: float = 1.0) -> None:
        self._done += laps
        self._lap_s = self._time_s()

    @property
    def age_s(self) -> float:
        return self._time_s() - self._begin_s

    @property
    def share(self) -> float | None:
        """None: nobody knows."""
        return min(1.0, self._done / self._expected) if self._expected else None

    @property
    def left_s(self) -> float | None:
        """At the pace so far; None while that would be a guess."""
        share = self.share
        if share is None or share < TELLING:
            return None
        return max(0.0, (self._lap_s - self._begin_s) / share - self.age_s)


class View(Protocol):
    def look(self) -> None:
        """Some time has passed."""

    def close(self) -> None:
        """The work is done."""


class Bar:
    """For a terminal: comes when the work is not short, and goes with it."""

    def __init__(self, account: Account, console: Console) -> None:
        self._account = account
        columns = (
            SpinnerColumn(),
            BarColumn(bar_width=BAR),
            TextColumn("{task.fields[share]:>4}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            # What is left of the line: a long text is cut, and not the bar.
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        )
        # Python's stdout stays what it is: it may be a file.
        self._progress = Progress(*columns, console=console, transient=True, expand=True, redirect_stdout=False)
        self._task = self._progress.add_task(account.text, total=None, share="", left="")

    def look(self) -> None:
        share, left_s = self._account.share, self._account.left_s
        self._progress.update(
            self._task,
            description=self._account.text,
            total=None if share is None else 1.0,  # without one the bar only swings
            completed=share or 0.0,
            share="" if share is None else f"{share:.0%}",
            left="" if left_s is None else show_left(left_s),
        )
        if self._account.age_s >= SHORT_S:
            self._progress.start()

    def close(self) -> None:
        self._progress.stop()


class Lines:
    """For files and pipes: a line when something else has begun, and when nothing was said for long."""

    def __init__(self, account: Account, speak: Callable[[str], None] = notify) -> None:
        self._account = account
        self._speak = speak
        self._told = ""  # what the last line was about
        self._told_s = -math.inf

    def look(self) -> None:
        age_s = self._account.age_s
        subject = self._account.text.partition(":")[0]  # a bandwidth, not each of its rounds
        pause_s = PAUSE_S if subject != self._told else SILENCE_S
        if age_s >= SHORT_S and age_s - self._told_s >= pause_s:
            self._told, self._told_s = subject, age_s
            self._speak(describe(self._account))

    def close(self) -> None:
        pass


def describe(account: Account) -> str:
    """In one line."""
    if account.share is None:
        return account.text
    left = "" if account.left_s is None else f", {show_left(account.left_s)}"
    return f"{account.text} ({account.share:.0%}{left})"


def show_left(left_s: float) -> str:
    """No more precise than it can be."""
    if left_s < 120:
        return f"about {max(1, math.ceil(left_s))} s left"
    if left_s < 3600:
        return f"about {round(left_s / 60)} min left"
    return f"about {left_s / 3600:.1f} h left"


def open_console() -> Console:
    """For tables on stdout: the terminal as it is, or wide enough that nothing is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)


@contextmanager
def open_watch() -> Iterator[Watch]:
    """Inside of the block the user is shown what the watch is told."""
    account = Account()
    console = Console(stderr=True)
    # Asked of the file too: FORCE_COLOR, as many CI systems set it, makes no terminal of a log.
    is_terminal = console.is_interactive and console.file.isatty()
    view: View = Bar(account, console) if is_terminal else Lines(account)
    done = threading.Event()
    looking = threading.Thread(target=_look, args=(view, done), name="undertow-progress", daemon=True)
    looking.start()
    try:
        yield account
    finally:
        done.set()
        looking.join()
        view.close()


def _look(view: View, done: threading.Event) -> None:
    while not done.wait(LOOK_S):
        view.look()
