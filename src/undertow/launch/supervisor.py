"""The supervisor: watches the workers until the last one has ended.

In: running workers, signals to the launcher.  Out: how each worker ended.
What to do when is decided by `Shutdown`; this file only waits, reaps and signals.
Sleeps until a child ends, a signal comes or a deadline is due; it never polls fast.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from undertow.launch.failure import Ending, describe_code
from undertow.launch.guard import Guard, bury_orphans, kill_descendants, read_state, signal_group
from undertow.launch.host_line import HostLine
from undertow.launch.host_watch import HostWatch, Instructions
from undertow.launch.shutdown import Shutdown
from undertow.launch.worker import Worker

CHECK_EVERY_S = 1.0
STOPPED_CHECKS = 5
STUCK_CHECKS = 10


class Signals:
    """Signals that came, in order; `wait` returns as soon as there is one, or a child ended."""

    def __init__(self, wake_fd: int) -> None:
        self._wake_fd = wake_fd
        self._came: list[signal.Signals] = []

    def note(self, signum: int, frame: FrameType | None) -> None:
        if signum != signal.SIGCHLD:
            self._came.append(signal.Signals(signum))

    def wait(self, timeout_s: float, line: HostLine | None = None) -> None:
        """Also returns when there is news on `line`."""
        sources = [self._wake_fd] if line is None else [self._wake_fd, line.fileno()]
        if self._wake_fd in select.select(sources, [], [], timeout_s)[0]:
            os.read(self._wake_fd, 4096)

    def take(self) -> list[signal.Signals]:
        came, self._came = self._came, []
        return came


@contextmanager
def catch_signals() -> Iterator[Signals]:
    """Collect stop signals and the end of children instead of dying from them."""
    wake_out, wake_in = os.pipe()
    os.set_blocking(wake_in, False)
    signals = Signals(wake_out)
    before = {signum: signal.signal(signum, signals.note) for signum in _signals_to_catch()}
    before_fd = signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(before_fd)
        for signum, handler in before.items():
            signal.signal(signum, handler)
        os.close(wake_in)
        os.close(wake_out)


def _signals_to_catch() -> list[signal.Signals]:
    # nohup has the launcher ignore SIGHUP: then a closed terminal is no reason to end.
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, *([] if ignores_hangup else [signal.SIGHUP])]


class StopWatch:
    """Notices workers that somebody stopped (SIGSTOP, a forgotten debugger).

    Counts checks instead of seconds: while the launcher itself is stopped, nothing counts.
    """

    def __init__(self) -> None:
        self._checks: dict[int, int] = {}

    def observe(self, rank: int, pid: int, *, state: str) -> str | None:
        """A warning, once for each time a worker stays stopped."""
        self._checks[rank] = self._checks.get(rank, 0) + 1 if state == "T" else 0
        if self._checks[rank] != STOPPED_CHECKS:
            return None
        return f"rank {rank} (pid {pid}) is stopped and does not compute; wake it with: kill -CONT {pid}"

    def is_stuck(self, rank: int) -> bool:
        """Whether it has been stopped for so long that workers who wait for it should hear of it."""
        return self._checks.get(rank, 0) >= STUCK_CHECKS


class Supervisor:
    """Owns the workers from their start to their end."""

    def __init__(
        self, guard: Guard, *, notify: Callable[[str], None], hush: Callable[[], None], line: HostLine | None = None
    ) -> None:
        self.shutdown = Shutdown()
        self.endings: list[Ending] = []
        self._workers: list[Worker] = []
        self._living: list[Worker] = []
        self._guard = guard
        self._notify = notify
        self._hush = hush
        self._line = line
        self._stop_watch = StopWatch()
        self._next_check_s = time.monotonic() + CHECK_EVERY_S

    @property
    def went_well(self) -> bool:
        """Every worker has ended by itself, and without an error."""
        has_failed = self.shutdown.interrupted_by or any(e.code or e.by_launcher for e in self.endings)
        return not self._living and not has_failed

    def adopt(self, worker: Worker) -> None:
        """From now on this worker will not outlive us."""
        self._guard.watch(worker.pid)
        self._workers.append(worker)
        self._living.append(worker)

    def watch(self, signals: Signals) -> None:
        """Returns when no worker lives any more."""
        while self._living:
            signals.wait(self._patience_s(), None if self.shutdown.has_signalled else self._line)
            self._hear_others()
            for signum in signals.take():
                self._tell_others(partial(HostWatch.note_leaving, reason=f"was interrupted by {signum.name}"))
                if signum is signal.SIGINT:
                    self._hush()  # before they get it: every worker's KeyboardInterrupt would fill the screen
                self._send(self.shutdown.interrupt(signum, time.monotonic()))
            self._note_endings()
            self._send(self.shutdown.due(time.monotonic()))
            if time.monotonic() >= self._next_check_s:
                self._check()

    def sweep(self) -> None:
        """Kill what the workers left behind; after a bad end also what detached itself."""
        for worker in self._workers:
            signal_group(worker.pid, signal.SIGKILL)
        if not self.went_well:
            kill_descendants([os.getpid()], spare=[self._guard.pid])
        for worker in self._workers:
            worker.process.wait()
            self._guard.forget(worker.pid)

    def _patience_s(self) -> float:
        deadlines = [self._next_check_s]
        if self.shutdown.deadline_s is not None:
            deadlines.append(self.shutdown.deadline_s)
        return max(0.0, min(deadlines) - time.monotonic())

    def _note_endings(self) -> None:
        now_s, by_launcher = time.monotonic(), self.shutdown.has_signalled
        for worker in list(self._living):
            code = worker.peek_code()
            if code is None:
                continue
            self._living.remove(worker)
            self.endings.append(
                Ending(rank=worker.rank, host=worker.host, code=code, ended_s=now_s, by_launcher=by_launcher)
            )
            if self._line is not None and not by_launcher:
                words = describe_code(code).partition(";")[0]  # the guess behind it is for this host's own user
                self._line.note_ended(worker.rank, code, words)
            if code:
                self.shutdown.fail(now_s)

    def _tell_others(self, call: Callable[[HostWatch], Instructions]) -> None:
        if self._line is not None:
            self._line.post(call)

    def _hear_others(self) -> None:
        if self._line is not None and self._line.cause and not self.shutdown.has_signalled:
            self._notify(f"{self._line.cause}: ending the workers of this host")
            self._send(self.shutdown.end(time.monotonic()))

    def _send(self, signum: signal.Signals | None) -> None:
        if signum is not None:
            for worker in self._living:
                signal_group(worker.pid, signum)

    def _check(self) -> None:
        self._next_check_s = time.monotonic() + CHECK_EVERY_S
        bury_orphans(spare={worker.pid for worker in self._workers})
        for worker in self._living:
            warning = self._stop_watch.observe(worker.rank, worker.pid, state=read_state(worker.pid))
            if warning:
                self._notify(warning)
            if self._stop_watch.is_stuck(worker.rank):
                self._tell_others(partial(HostWatch.note_stopped, rank=worker.rank, pid=worker.pid))
