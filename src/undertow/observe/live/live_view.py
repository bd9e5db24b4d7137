"""The live view of a running job: collects the job's state, and shows it on each display in a thread of its own.

In: the user's options; status reports, lines and endings.  Out: a dashboard, a log, a page.
Reports arrive at a datagram socket in a folder that only this user can enter; other datagrams are dropped.  The socket
has a path, not an abstract name: abstract names are open to every user of the host, and emulated hosts do not share
them.
No display can delay another one, the workers, or the end of the job: a display that hangs is abandoned.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from undertow.errors import Garbled
from undertow.launch.exit_report import WorkerExit, describe_code
from undertow.launch.launcher_output import notify
from undertow.launch.relay import VisibleRanks
from undertow.launch.worker import WorkerSpec
from undertow.observe.live.displays import LogDisplay, Screen, find_terminal
from undertow.observe.live.job_state import DONE, JobSnapshot, JobState
from undertow.observe.live.web import LAST_SNAPSHOT_S, WebDisplay
from undertow.observe.meter.status_report import StatusReport, decode

HISTORY_EVERY_S = 1.0
# A terminal or log that is not read may delay the end of the job by this long.
LAST_FRAME_S = 1.0
# A display that is not stuck, but slow because the machine is, may take this many times as long.
SLOWEST_DISPLAY = 10
LONGEST_DATAGRAM = 1 << 16


class Display(Protocol):
    """A display of a job, used by a thread of its own from `start` to `finish`."""

    every_s: float

    def start(self) -> None: ...

    def show(self, snapshot: JobSnapshot) -> None: ...

    def finish(self, snapshot: JobSnapshot) -> None: ...

    def is_stuck(self) -> bool:
        """Return true if nothing can be written at the moment, so that `finish` would hang."""

    def release(self) -> None:
        """Free everything; called in the launcher's thread when `finish` has ended or hangs."""


class LiveView:
    """State of one job and its displays: `start` before the workers start, `finish` when all have ended.

    `start` is the first to create a thread, because the lab forks before it.
    """

    def __init__(self, job: JobState, displays: Sequence[Display], *, visible: VisibleRanks | None) -> None:
        self.visible = visible  # the ranks whose output is shown beside the view; None: as without a view
        self._job, self._lock = job, threading.Lock()
        self._displays = displays
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._endings: Sequence[WorkerExit] = ()
        self._history_s = 0.0  # when the latest point of the history was added
        self._receiver = StatusReceiver(self.add_report)
        self.address = str(self._receiver.path)  # where workers send reports
        self.folder = self._receiver.folder  # temporary: exists from `start` to `collect`

    def collect(self) -> None:
        """Take the reports that have arrived, and stop receiving: all workers have ended."""
        self._receiver.close()

    def add_report(self, report: StatusReport) -> None:
        with self._lock:
            self._job.add_report(report, time.monotonic())

    def listen(self, stream: int, data: bytes) -> None:
        with self._lock:
            self._job.lines.feed(stream, data)

    def start(self, specs: Sequence[WorkerSpec], endings: Sequence[WorkerExit]) -> None:
        """Show these workers; `endings` grows while they end."""
        world_size = int(specs[0].environment["WORLD_SIZE"])
        self._job.expect({spec.rank: spec.host for spec in specs}, world_size)
        self._endings = endings
        self._receiver.start()
        for display in self._displays:
            display.start()
            thread = threading.Thread(target=self._run, args=(display,), name="undertow-view", daemon=True)
            self._threads.append(thread)
            thread.start()

    def finish(self, verdict: str) -> None:
        """Show how the job ended, and free the terminal.  A second call does nothing."""
        if self._ending.is_set():
            return
        self.collect()  # first, so that the last snapshot has the workers' last reports
        with self._lock:
            self._job.end_job(verdict)
        self._ending.set()
        for display, thread in zip(self._displays, self._threads, strict=False):  # no threads before `start`
            _wait_for(display, thread)
        for display in self._displays:
            display.release()

    def _run(self, display: Display) -> None:
        try:
            while not self._ending.wait(display.every_s):
                display.show(self._take_snapshot())
        except Exception as error:  # a defect here must neither leave the terminal unusable nor end the job
            notify(f"the live view failed and has ended; the job continues: {type(error).__name__}: {error}")
        finally:
            display.finish(self._take_snapshot())

    def _take_snapshot(self) -> JobSnapshot:
        now_s = time.monotonic()
        with self._lock:
            for ending in tuple(self._endings):
                self._job.end_rank(ending.rank, describe_code(ending.code) if ending.code else DONE)
            if now_s >= self._history_s + HISTORY_EVERY_S:
                self._history_s = now_s
                self._job.add_history_point()
            return self._job.take_snapshot(now_s)


def _wait_for(display: Display, thread: threading.Thread) -> None:
    """Wait until the display has ended or hangs: a frame drawn later would cover the launcher's last messages."""
    for _ in range(SLOWEST_DISPLAY):
        thread.join(LAST_FRAME_S + LAST_SNAPSHOT_S)
        if not thread.is_alive() or display.is_stuck():
            return


@contextmanager
def open_live_view(script: str, *, live: bool, port: int | None) -> Iterator[LiveView]:
    """Open a view.  Raises `ConfigError` if the port is not available."""
    job = JobState(script, now_s=time.monotonic())
    displays: list[Display] = []
    fd = find_terminal(os.environ) if live else None
    if port is not None:
        web = WebDisplay(port, job.take_snapshot(time.monotonic()))
        displays.append(web)
        local, host = f"127.0.0.1:{web.server_port}", socket.gethostname()
        notify(f"live view at http://{local}/ (from elsewhere: ssh -L {web.server_port}:{local} {host})")
    if live:
        displays.append(LogDisplay() if fd is None else Screen(fd))
    visible = None if not live else VisibleRanks.FIRST if fd is None else VisibleRanks.BESIDE
    view = LiveView(job, displays, visible=visible)
    try:
        yield view
    finally:
        view.finish("stopped")


class StatusReceiver:
    """A socket for status reports, and the thread that reads it.  `folder` and `path` exist from `start` to `close`."""

    def __init__(self, on_report: Callable[[StatusReport], None]) -> None:
        self._on_report = on_report
        # In /tmp, even if TMPDIR is set: the kernel allows at most 107 bytes for a socket's path.
        self.folder = Path("/tmp") / f"undertow-live-{secrets.token_hex(8)}"
        self.path = self.folder / "status"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._thread = threading.Thread(target=self._run, name="undertow-status", daemon=True)

    def open(self) -> None:
        """Make the folder and the socket.  The socket holds reports until they are read."""
        self.folder.mkdir(mode=0o700)  # fails if it exists, because it would be another user's
        self._socket.bind(str(self.path))

    def start(self) -> None:
        self.open()
        self._thread.start()

    def close(self) -> None:
        """Hand over the reports that have arrived, and stop the thread.  A second call does nothing."""
        if self._thread.is_alive():
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as waker:
                waker.sendto(b"", str(self.path))
            self._thread.join()
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self) -> None:
        while data := self._socket.recv(LONGEST_DATAGRAM):
            try:
                report = decode(data)
            except Garbled:
                continue
            self._on_report(report)
