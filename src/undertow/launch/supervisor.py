"""The supervisor: watches the workers until the last one has ended.

In: running workers, signals to the launcher.  Out: how each worker ended.
`Shutdown` decides which signal the workers get and when; the rest only waits, reaps and signals.
It sleeps until a child ends, a signal arrives or a deadline is due; it never polls fast.
"""

from __future__ import annotations

import enum
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from undertow.launch.cleanup_guard import CleanupGuard, kill_descendants, read_state, reap_orphans, signal_group
from undertow.launch.exit_report import WorkerExit, name_code
from undertow.launch.host_watch import HostWatch, Instructions
from undertow.launch.launcher_link import LauncherLink
from undertow.launch.worker import Worker

CHECK_EVERY_S = 1.0
STOPPED_CHECKS = 5
STUCK_CHECKS = 10
FAILURE_GRACE_S = 2.0
SIGNAL_GRACE_S = 1.0


class Phase(enum.Enum):
    RUNNING = "running"
    GRACE = "grace"  # a worker failed; the others may still end on their own
    SIGNALLED = "signalled"  # all workers got a signal
    KILLED = "killed"


class Shutdown:
    """State machine of a job's end: decides which signal the workers get, and when.  Phases only advance.

    After a failure the other workers may first end on their own, because their errors (which rank was lost, and
    where) tell more than a signal.  After an interrupt they are signalled at once.  A worker that does not end in time
    is killed; a second interrupt kills at once.
    """

    def __init__(self) -> None:
        self.phase = Phase.RUNNING
        self.interrupted_by: signal.Signals | None = None
        self.deadline_s: float | None = None  # when `due` returns a signal; set in GRACE and SIGNALLED only

    def fail(self, now_s: float) -> None:
        if self.phase is Phase.RUNNING:
            self._enter(Phase.GRACE, now_s + FAILURE_GRACE_S)

    def end(self, now_s: float) -> signal.Signals | None:
        """Return the signal to send after a failure on another host, of which the workers here know nothing."""
        if self.phase not in (Phase.RUNNING, Phase.GRACE):
            return None
        self._enter(Phase.SIGNALLED, now_s + SIGNAL_GRACE_S)
        return signal.SIGTERM

    def interrupt(self, signum: signal.Signals, now_s: float) -> signal.Signals:
        """Return the signal to send because the user interrupted the job."""
        if self.interrupted_by is not None or self.phase is Phase.KILLED:
            self._enter(Phase.KILLED, None)
            return signal.SIGKILL
        self.interrupted_by = signum
        self._enter(Phase.SIGNALLED, now_s + SIGNAL_GRACE_S)
        return signum

    def due(self, now_s: float) -> signal.Signals | None:
        """Return the next signal to send, if the deadline has passed."""
        if self.deadline_s is None or now_s < self.deadline_s:
            return None
        if self.phase is Phase.GRACE:
            self._enter(Phase.SIGNALLED, now_s + SIGNAL_GRACE_S)
            return signal.SIGTERM
        self._enter(Phase.KILLED, None)
        return signal.SIGKILL

    @property
    def has_signalled(self) -> bool:
        """Whether a worker that ends now may have been ended by the launcher."""
        return self.phase in (Phase.SIGNALLED, Phase.KILLED)

    def _enter(self, phase: Phase, deadline_s: float | None) -> None:
        self.phase, self.deadline_s = phase, deadline_s


class Signals:
    """Signals that this process received, in order."""

    def __init__(self, wake_fd: int) -> None:
        self._wake_fd = wake_fd
        self._received: list[signal.Signals] = []

    def note(self, signum: int, frame: FrameType | None) -> None:
        if signum != signal.SIGCHLD:
            self._received.append(signal.Signals(signum))

    def wait(self, timeout_s: float, link: LauncherLink | None = None) -> None:
        """Return when a signal arrives, a child ends or `link` has a cause to end the workers, or after the timeout."""
        sources = [self._wake_fd] if link is None else [self._wake_fd, link.fileno()]
        if self._wake_fd in select.select(sources, [], [], timeout_s)[0]:
            os.read(self._wake_fd, 4096)

    def take(self) -> list[signal.Signals]:
        received, self._received = self._received, []
        return received


@contextmanager
def catch_signals() -> Iterator[Signals]:
    """Collect signals instead of running their default actions, and let `Signals.wait` return when a child ends."""
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
    # Under nohup the launcher ignores SIGHUP: then a closed terminal does not end the job.
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, *([] if ignores_hangup else [signal.SIGHUP])]


class StoppedWorkers:
    """Number of consecutive checks that found each worker stopped (SIGSTOP, a forgotten debugger).

    Counts checks instead of seconds, so that time during which the launcher itself is stopped does not count.
    """

    def __init__(self) -> None:
        self._checks: dict[int, int] = {}

    def observe(self, rank: int, pid: int, *, state: str) -> str | None:
        """Record the state of a worker, and return a warning once it has stayed stopped for some checks."""
        self._checks[rank] = self._checks.get(rank, 0) + 1 if state == "T" else 0
        if self._checks[rank] != STOPPED_CHECKS:
            return None
        return f"rank {rank} (pid {pid}) is stopped and does not compute; continue it with: kill -CONT {pid}"

    def is_stuck(self, rank: int) -> bool:
        """Whether the worker has been stopped for so long that it counts as lost if other workers wait for it."""
        return self._checks.get(rank, 0) >= STUCK_CHECKS


class Supervisor:
    """Owner of a host's workers from their start to their end."""

    def __init__(
        self,
        guard: CleanupGuard,
        *,
        notify: Callable[[str], None],
        mute_stderr: Callable[[], None],
        link: LauncherLink | None = None,
    ) -> None:
        self.shutdown = Shutdown()
        self.endings: list[WorkerExit] = []
        self._workers: list[Worker] = []
        self._living: list[Worker] = []
        self._guard = guard
        self._notify = notify
        self._mute_stderr = mute_stderr
        self._link = link
        self._stopped = StoppedWorkers()
        self._next_check_s = time.monotonic() + CHECK_EVERY_S

    @property
    def went_well(self) -> bool:
        """Whether every worker has ended on its own and without an error."""
        has_failed = self.shutdown.interrupted_by or any(e.code or e.by_launcher for e in self.endings)
        return not self._living and not has_failed

    def adopt(self, worker: Worker) -> None:
        """Take charge of a worker, so that it does not outlive this process."""
        self._guard.watch(worker.pid)
        self._workers.append(worker)
        self._living.append(worker)

    def watch(self, signals: Signals) -> None:
        """Forward signals and react to failures until all workers have ended."""
        while self._living:
            signals.wait(self._time_left_s(), None if self.shutdown.has_signalled else self._link)
            self._check_other_hosts()
            for signum in signals.take():
                self._notify_other_hosts(partial(HostWatch.note_leaving, reason=f"was interrupted by {signum.name}"))
                if signum is signal.SIGINT:
                    self._mute_stderr()  # before the signal: every worker's KeyboardInterrupt would fill the screen
                self._send(self.shutdown.interrupt(signum, time.monotonic()))
            self._note_endings()
            self._send(self.shutdown.due(time.monotonic()))
            if time.monotonic() >= self._next_check_s:
                self._check()

    def sweep(self) -> None:
        """Kill what is left of the workers' process groups; if the job failed, also children that detached."""
        for worker in self._workers:
            signal_group(worker.pid, signal.SIGKILL)
        if not self.went_well:
            kill_descendants([os.getpid()], spare=[self._guard.pid])
        for worker in self._workers:
            worker.process.wait()
            worker.note.close()
            self._guard.forget(worker.pid)

    def _time_left_s(self) -> float:
        deadlines = [self._next_check_s]
        if self.shutdown.deadline_s is not None:
            deadlines.append(self.shutdown.deadline_s)
        return max(0.0, min(deadlines) - time.monotonic())

    def _note_endings(self) -> None:
        now_s, by_launcher = time.monotonic(), self.shutdown.has_signalled
        for worker in list(self._living):
            code = worker.peek_exit_code()
            if code is None:
                continue
            self._living.remove(worker)
            self.endings.append(
                WorkerExit(
                    rank=worker.rank,
                    host=worker.host,
                    code=code,
                    ended_s=now_s,
                    by_launcher=by_launcher,
                    loss=worker.note.read(),
                )
            )
            if self._link is not None and not by_launcher:
                self._link.note_ended(worker.rank, code, name_code(code))
            if code:
                self.shutdown.fail(now_s)

    def _notify_other_hosts(self, call: Callable[[HostWatch], Instructions]) -> None:
        if self._link is not None:
            self._link.post(call)

    def _check_other_hosts(self) -> None:
        if self._link is not None and self._link.cause and not self.shutdown.has_signalled:
            self._notify(f"{self._link.cause}: ending the workers of this host")
            self._send(self.shutdown.end(time.monotonic()))

    def _send(self, signum: signal.Signals | None) -> None:
        if signum is not None:
            for worker in self._living:
                signal_group(worker.pid, signum)

    def _check(self) -> None:
        self._next_check_s = time.monotonic() + CHECK_EVERY_S
        reap_orphans(spare={worker.pid for worker in self._workers})
        for worker in self._living:
            warning = self._stopped.observe(worker.rank, worker.pid, state=read_state(worker.pid))
            if warning:
                self._notify(warning)
            if self._stopped.is_stuck(worker.rank):
                self._notify_other_hosts(partial(HostWatch.note_stopped, rank=worker.rank, pid=worker.pid))
