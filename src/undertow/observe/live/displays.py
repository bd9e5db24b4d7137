"""The displays of the live view on stderr or stdout: frames on a terminal, otherwise a line every few seconds.

In: snapshots of the job; messages of the launcher.  Out: frames or lines.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.live import Live

from undertow.launch.launcher_output import notify, print_lines, redirect
from undertow.observe.live.dashboard import draw
from undertow.observe.live.job_state import JobSnapshot
from undertow.units import format_byte_rate, format_ms, format_percent, format_speed

LINE_EVERY_S = 5.0


def find_terminal(environ: Mapping[str, str]) -> int | None:
    """Return the descriptor to draw on, stderr or stdout; None if neither is a terminal that can draw."""
    if environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return None
    return next((fd for fd in (2, 1) if os.isatty(fd)), None)


class Screen:
    """A display that uses a whole terminal from `start` to `finish`, and leaves the last frame there.

    Frames are drawn on the terminal's alternate screen, each from the top, so that nothing remains of a frame garbled
    by a resize.
    """

    every_s = 0.5

    def __init__(self, fd: int) -> None:
        # A duplicate, because closing this file must not close the launcher's own stream.
        self._file = os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="replace")
        self._console = Console(file=self._file, force_terminal=True, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console, auto_refresh=False, screen=True, redirect_stdout=False, redirect_stderr=False
        )
        self._lock = threading.Lock()
        self._notices: list[str] = []

    def start(self) -> None:
        redirect(self._add_notices)
        self._live.start()

    def show(self, snapshot: JobSnapshot) -> None:
        width, height = self._console.size
        with self._lock:
            notices = list(self._notices)
        self._live.update(draw(snapshot, width=width, height=height, notices=notices), refresh=True)

    def finish(self, snapshot: JobSnapshot) -> None:
        self._live.stop()
        width, height = self._console.size
        self._console.print(draw(snapshot, width=width, height=height))
        self._file.flush()

    def is_stuck(self) -> bool:
        return not select.select([], [self._file], [], 0)[1]

    def release(self) -> None:
        """Let the launcher write again, even after a hang, beginning with messages that may not have been shown."""
        redirect(None)
        with self._lock:
            notices, self._notices = self._notices, []
        if notices:
            print_lines(*notices)

    def _add_notices(self, lines: Sequence[str]) -> None:
        with self._lock:
            self._notices += lines


class LogDisplay:
    """A display for logs: a line every few seconds, and a warning as soon as a rank falls silent or fails."""

    every_s = 0.5

    def __init__(self, write: Callable[[str], None] = notify, clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._due_s = 0.0
        self._alarms: set[int] = set()
        self._written = ""

    def start(self) -> None:
        self._due_s = self._clock() + LINE_EVERY_S

    def show(self, snapshot: JobSnapshot) -> None:
        for alarm in find_alarms(snapshot, self._alarms):
            self._write(alarm)
        if self._clock() >= self._due_s:
            self._due_s += LINE_EVERY_S
            self._describe(snapshot)

    def finish(self, snapshot: JobSnapshot) -> None:
        if snapshot.reporting:
            self._describe(snapshot)

    def is_stuck(self) -> bool:
        return False  # `notify` has a timeout of its own

    def release(self) -> None:
        pass

    def _describe(self, snapshot: JobSnapshot) -> None:
        line = describe(snapshot)
        if line != self._written:  # the job may end right after a line was written
            self._write(line)
        self._written = line


def describe(snapshot: JobSnapshot) -> str:
    """Describe a job in one line: `step 1240, 8.3 steps/s, 9 % waiting (most for fc6.weight), out 93 MB/s, ...`."""
    if not snapshot.reporting:
        return "no worker has reported yet"
    steps = [f"step {snapshot.steps}", format_speed(snapshot.steps_per_s)] if snapshot.steps else ["no step seen yet"]
    words = [*steps, _describe_waits(snapshot)]
    if snapshot.turn_share >= 0.01:
        words.append(f"{format_percent(snapshot.turn_share)} other job's turn")
    each = " each" if snapshot.reporting > 1 else ""
    words.append(f"out {format_byte_rate(snapshot.out_bytes_per_s)}")
    words.append(f"in {format_byte_rate(snapshot.in_bytes_per_s)}{each}")
    if snapshot.layer:
        words.append(f"slowest layer {snapshot.layer} {format_ms(snapshot.layer_ms_per_step / 1e3, 2)}")
    return ", ".join(words)


def _describe_waits(snapshot: JobSnapshot) -> str:
    share = f"{format_percent(snapshot.wait_share)} waiting"
    return f"{share} (most for {snapshot.waits_for})" if snapshot.waits_for and snapshot.wait_share >= 0.01 else share


def find_alarms(snapshot: JobSnapshot, known: set[int]) -> list[str]:
    """Return a warning for each newly alarming rank; `known` holds the ranks warned about, and is updated."""
    alarming = {row.rank: row for row in snapshot.rows if row.is_alarming and row.is_up}
    fresh = [row for rank, row in alarming.items() if rank not in known]
    known.clear()
    known.update(alarming)
    return [f"rank {row.rank}{f' on host {row.host}' if row.host else ''}: {row.state}" for row in fresh]
