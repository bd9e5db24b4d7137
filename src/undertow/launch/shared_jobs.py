"""Several jobs at once on this host, each under a launcher of its own; one that fails does not end the others.

In: checked jobs, the arbiter's socket.  Out: how each ended, and what the arbiter saw of it; nothing is left running.
Belongs to a process of its own, as `launcher` does.  An arbiter is started if there is none, and taken down again
unless somebody else's jobs are at it by then.
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
from undertow.launch.arbiters import start_arbiter
from undertow.launch.guard import Guard
from undertow.launch.job_file import SharedJob
from undertow.launch.output import Shown, make_prefix
from undertow.launch.relay import Relay
from undertow.launch.speech import notify
from undertow.launch.supervisor import Signals, catch_signals
from undertow.launch.tally import Figures, Lookout, Tally

# A launcher that was interrupted gives its workers a second before it kills them, and then has its say.
INTERRUPT_GRACE_S = 5.0
LAST_WORDS_S = 1.0
CHECK_EVERY_S = 1.0


@dataclass(eq=False)
class Running:
    """A job from its start to its end."""

    job: SharedJob
    process: subprocess.Popen[bytes]
    started_s: float
    code: int | None = None  # as Popen has it: below 0 means killed by that signal
    ended_s: float = 0.0


@dataclass(frozen=True)
class JobEnd:
    """How a job ended; `figures` are None if it never came to the arbiter."""

    name: str
    exit_code: int
    wall_s: float
    figures: Figures | None


@dataclass(frozen=True)
class Story:
    """Of all jobs, in the order of their files; the devices as the arbiter saw them."""

    ends: list[JobEnd]
    devices: list[DeviceStatus]
    exit_code: int


def run_together(jobs: Sequence[SharedJob], path: Path, environ: Mapping[str, str]) -> Story:
    """Start all jobs, and wait for all.  Raises `UndertowError` if there can be no arbiter."""
    tally, relay = Tally(), Relay()
    with closing(Guard()) as guard, catch_signals() as signals, _arbiter(path, guard):
        crew = Crew(guard, relay)
        lookout = Lookout(lambda: ask_status(path), tally)
        try:
            for number, job in enumerate(jobs):
                tally.launchers.append(crew.start(job, number, job.make_environment(environ, path)))
            relay.start()
            lookout.start()
            crew.watch(signals)
        finally:
            crew.end()
        lookout.finish()
    with contextlib.suppress(KeyboardInterrupt):  # nothing runs any more: somebody is tired of a slow reader of ours
        relay.finish(None if crew.exit_code == 0 else LAST_WORDS_S)
    if crew.interrupted_by is not None:
        notify(f"interrupted by {crew.interrupted_by.name}, all jobs have ended")
    ends = [
        JobEnd(one.job.name, _to_exit_code(one), one.ended_s - one.started_s, tally.find_figures(one.process.pid))
        for one in crew.running
    ]
    return Story(ends, tally.devices, crew.exit_code)


@dataclass(eq=False)
class Crew:
    """The launchers.  `watch` returns when all have ended."""

    guard: Guard
    relay: Relay
    running: list[Running] = field(default_factory=list)
    interrupted_by: signal.Signals | None = None
    _kill_s: float | None = None  # when patience ends
    _failed: Running | None = None  # the first

    @property
    def exit_code(self) -> int:
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        return 0 if self._failed is None else _to_exit_code(self._failed)

    def start(self, job: SharedJob, number: int, environment: Mapping[str, str]) -> int:
        """Returns the launcher's pid."""
        process = subprocess.Popen(
            job.command,
            cwd=job.folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C comes from us alone, once
        )
        self.guard.watch(process.pid)
        self.running.append(Running(job, process, time.monotonic()))
        for target_fd, stream in enumerate((process.stdout, process.stderr), start=1):
            assert stream is not None
            coloured = os.isatty(target_fd) and not os.environ.get("NO_COLOR")
            prefix = make_prefix(number, coloured=coloured, name=job.name)
            self.relay.add(os.dup(stream.fileno()), target_fd, rank=number, shown=Shown.PREFIXED, prefix=prefix)
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
                self._look_at(one)

    def end(self) -> None:
        """Whatever happened, nobody stays behind."""
        self._send(signal.SIGKILL, [one for one in self.running if one.code is None])
        for one in self.running:
            one.process.wait()
            self.guard.forget(one.process.pid)

    def _interrupt(self, signum: signal.Signals, living: Sequence[Running]) -> None:
        """Each launcher ends its workers; on a second signal at once."""
        if self.interrupted_by is None:
            self.interrupted_by, self._kill_s = signum, time.monotonic() + INTERRUPT_GRACE_S
        self._send(signum, living)

    def _send(self, signum: signal.Signals, living: Sequence[Running]) -> None:
        for one in living:
            one.process.send_signal(signum)

    def _look_at(self, one: Running) -> None:
        one.code = one.process.poll()
        if one.code is None:
            return
        one.ended_s = time.monotonic()
        if one.code and self._failed is None:
            self._failed = one
        others = sum(other.code is None for other in self.running)
        if one.code and others and self.interrupted_by is None:
            notify(f"{one.job.name} has failed with exit code {_to_exit_code(one)}; the others go on")


@contextlib.contextmanager
def _arbiter(path: Path, guard: Guard) -> Iterator[None]:
    """There is one while the block runs."""
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
        _take_down(path, started.process.pid)
        guard.forget(started.process.pid)
        started.process.poll()


def _take_down(path: Path, pid: int) -> None:
    """An arbiter that does not listen any more must not hide how the jobs have ended."""
    try:
        status = ask_status(path)
        if status is None or status.pid != pid:
            return  # somebody else has ended it
        if status.devices:
            others = sorted({job.name for device in status.devices for job in device.jobs})
            notify(f"the arbiter stays up for {', '.join(others)}; end it with undertow share down")
        else:
            stop(path)
    except UndertowError as error:
        notify(str(error))


def _to_exit_code(one: Running) -> int:
    assert one.code is not None
    return 128 - one.code if one.code < 0 else one.code
