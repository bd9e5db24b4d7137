"""Several jobs at once on this host, each under a launcher of its own; one that fails does not end the others.

In: checked jobs, the arbiter's socket.  Out: how each job ended, and what the arbiter measured about it; nothing is
left running.  Must run in a process of its own, as `launcher` must.  Starts an arbiter if there is none, and stops it
at the end unless other jobs use it by then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from undertow.crossover.contact import ask_status, stop
from undertow.crossover.messages import DeviceStatus
from undertow.crossover.turns import LEASE_S
from undertow.errors import UndertowError
from undertow.launch.arbiter_process import start_arbiter
from undertow.launch.cleanup_guard import CleanupGuard
from undertow.launch.exit_report import to_exit_code
from undertow.launch.job_file import SharedJob
from undertow.launch.job_usage import ArbiterPoller, JobUsage, UsageLog
from undertow.launch.launcher_output import notify
from undertow.launch.relay import Relay, StreamDisplay, make_prefix
from undertow.launch.supervisor import Signals, catch_signals

# A launcher that was interrupted gives its workers a second before it kills them, and then prints its report.
INTERRUPT_GRACE_S = 5.0
FLUSH_S = 1.0
CHECK_EVERY_S = 1.0


@dataclass(eq=False)
class RunningJob:
    """A job from its start to its end."""

    job: SharedJob
    process: subprocess.Popen[bytes]
    started_s: float
    code: int | None = None  # as Popen has it: below 0 means killed by that signal
    ended_s: float = 0.0

    @property
    def exit_code(self) -> int:
        assert self.code is not None, "it has ended"
        return to_exit_code(self.code)


@dataclass(frozen=True)
class JobEnd:
    """Outcome of one job; `usage` is None if the job never connected to the arbiter."""

    name: str
    exit_code: int
    wall_s: float
    usage: JobUsage | None


@dataclass(frozen=True)
class SharedRunResult:
    """Outcome of all jobs, in the order of their files, and the devices as the arbiter measured them."""

    ends: list[JobEnd]
    devices: list[DeviceStatus]
    exit_code: int


def run_together(jobs: Sequence[SharedJob], path: Path, environ: Mapping[str, str]) -> SharedRunResult:
    """Start all jobs, and wait for all; raise `UndertowError` if no arbiter can be started."""
    usage, relay = UsageLog(), Relay()
    with closing(CleanupGuard()) as guard, catch_signals() as signals, _arbiter(path, guard):
        launchers = JobLaunchers(guard, relay)
        poller = ArbiterPoller(path, usage)
        try:
            for number, job in enumerate(jobs):
                usage.launchers.append(launchers.start(job, number, job.make_environment(environ, path)))
            relay.start()
            poller.start()
            launchers.watch(signals)
        finally:
            launchers.end()
        poller.finish()
    with contextlib.suppress(KeyboardInterrupt):  # all jobs have ended: the user does not wait for a slow reader
        relay.finish(None if launchers.exit_code == 0 else FLUSH_S)
    if launchers.interrupted_by is not None:
        notify(f"interrupted by {launchers.interrupted_by.name}, all jobs have ended")
    ends = [
        JobEnd(one.job.name, one.exit_code, one.ended_s - one.started_s, usage.find(one.process.pid))
        for one in launchers.running
    ]
    return SharedRunResult(ends, usage.devices, launchers.exit_code)


@dataclass(eq=False)
class JobLaunchers:
    """The launchers of all jobs."""

    guard: CleanupGuard
    relay: Relay
    running: list[RunningJob] = field(default_factory=list)
    interrupted_by: signal.Signals | None = None
    _kill_s: float | None = None  # when launchers that are still running are killed
    _failed: RunningJob | None = None  # the first to fail

    @property
    def exit_code(self) -> int:
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        return 0 if self._failed is None else self._failed.exit_code

    def start(self, job: SharedJob, number: int, environment: Mapping[str, str]) -> int:
        """Start the launcher of a job, and return its pid."""
        process = subprocess.Popen(
            job.command,
            cwd=job.folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that Ctrl-C reaches it once, forwarded by this process
        )
        self.guard.watch(process.pid)
        self.running.append(RunningJob(job, process, time.monotonic()))
        for target_fd, stream in enumerate((process.stdout, process.stderr), start=1):
            assert stream is not None
            coloured = os.isatty(target_fd) and not os.environ.get("NO_COLOR")
            prefix = make_prefix(number, coloured=coloured, name=job.name)
            self.relay.add(os.dup(stream.fileno()), target_fd, rank=number, shown=StreamDisplay.PREFIXED, prefix=prefix)
            stream.close()
        return process.pid

    def watch(self, signals: Signals) -> None:
        while living := [one for one in self.running if one.code is None]:
            signals.wait(CHECK_EVERY_S)
            for signum in signals.take():
                self._interrupt(signum, living)
            if self._kill_s is not None and time.monotonic() >= self._kill_s:
                self._send(signal.SIGKILL, living)  # its own guard ends its workers
            for one in living:
                self._poll(one)

    def end(self) -> None:
        """Kill the launchers that are still running, and reap all."""
        self._send(signal.SIGKILL, [one for one in self.running if one.code is None])
        for one in self.running:
            one.process.wait()
            self.guard.forget(one.process.pid)

    def _interrupt(self, signum: signal.Signals, living: Sequence[RunningJob]) -> None:
        """Forward a signal: each launcher ends its workers, at once on a second signal."""
        if self.interrupted_by is None:
            self.interrupted_by, self._kill_s = signum, time.monotonic() + INTERRUPT_GRACE_S
        self._send(signum, living)

    def _send(self, signum: signal.Signals, living: Sequence[RunningJob]) -> None:
        for one in living:
            one.process.send_signal(signum)

    def _poll(self, one: RunningJob) -> None:
        one.code = one.process.poll()
        if one.code is None:
            return
        one.ended_s = time.monotonic()
        if one.code and self._failed is None:
            self._failed = one
        others = sum(other.code is None for other in self.running)
        if one.code and others and self.interrupted_by is None:
            notify(f"{one.job.name} has failed with exit code {one.exit_code}; the other jobs go on")


@contextlib.contextmanager
def _arbiter(path: Path, guard: CleanupGuard) -> Iterator[None]:
    """Make sure that an arbiter runs inside the block."""
    if ask_status(path) is not None:
        yield
        return
    started = start_arbiter(path, LEASE_S)
    if not started.is_ours:
        yield
        return
    guard.watch(started.process.pid)
    try:
        yield
    finally:
        _stop_arbiter(path, started.process.pid)
        guard.forget(started.process.pid)
        started.process.poll()


def _stop_arbiter(path: Path, pid: int) -> None:
    """Stop the arbiter that we started; an error is only printed, because the jobs' outcome matters more."""
    try:
        status = ask_status(path)
        if status is None or status.pid != pid:
            return  # it has been stopped in the meantime
        if status.devices:
            others = sorted({job.name for device in status.devices for job in device.jobs})
            notify(f"the arbiter keeps running for {', '.join(others)}; stop it with: undertow share down")
        else:
            stop(path)
    except UndertowError as error:
        notify(str(error))
