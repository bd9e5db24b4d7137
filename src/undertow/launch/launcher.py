"""The launcher: runs one job on this host, from the start of its workers to the exit report.

In: a checked `Job`, or the `WorkerSpec`s of an emulated cluster.  Out: an exit code; all started processes have ended.
Must run in a process of its own: it handles signals, adopts orphans and, when a job
fails or is interrupted, kills all descendants of this process.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from undertow.launch.cleanup_guard import CleanupGuard
from undertow.launch.exit_report import RemoteFailure, WorkerExit, make_exit_report
from undertow.launch.host_rendezvous import HostAssignment, join_hosts
from undertow.launch.job import Job, read_job_settings
from undertow.launch.launcher_link import LauncherLink
from undertow.launch.launcher_output import STDERR, notify, print_lines, print_log_records
from undertow.launch.relay import Relay, VisibleRanks
from undertow.launch.supervisor import Signals, Supervisor, catch_signals
from undertow.launch.traces import clear_traces, conclude_traces
from undertow.launch.worker import WorkerSpec, start_worker
from undertow.launch.worker_environment import build_environment, limits_threads

PR_SET_CHILD_SUBREAPER = 36
# How long children that outlive their worker may keep writing before they are killed.
LEFTOVERS_S = 0.5
# How long a slow reader of our output may delay the end of a job that failed or was interrupted.
FLUSH_S = 1.0


class JobView(Protocol):
    """A live display of a running job."""

    visible: VisibleRanks | None  # ranks whose output is still printed; None: as the options say

    @property
    def folder(self) -> Path: ...

    def listen(self, stream: int, data: bytes) -> None: ...

    def start(self, specs: Sequence[WorkerSpec], endings: Sequence[WorkerExit]) -> None: ...

    def collect(self) -> None: ...

    def finish(self, verdict: str) -> None: ...


class OpenView(Protocol):
    """Function that opens the view that the options request, and yields it with the environment of the workers."""

    def __call__(
        self, script: str, environ: Mapping[str, str], *, live: bool, port: int | None
    ) -> AbstractContextManager[tuple[JobView | None, dict[str, str]]]: ...


def launch(
    job: Job,
    environ: Mapping[str, str],
    open_view: OpenView,
    check: Callable[[HostAssignment], None] = lambda assignment: None,
) -> int:
    """Run the job, and return the code to exit with.

    If any host requests it, `check` is called once the hosts have met; if it raises, no worker is started.
    """
    print_log_records()
    settings = read_job_settings(environ)
    link = LauncherLink()
    with open_view(job.script, environ, live=job.live, port=job.live_port) as (view, worker_environ):
        return supervise(
            _prepare_workers(job, worker_environ, check, link),
            quiet_ranks=job.quiet_ranks,
            conclude=lambda: conclude_traces(settings, notify),
            view=view,
            link=link,
        )


def supervise(
    prepared: AbstractContextManager[Sequence[WorkerSpec]],
    *,
    quiet_ranks: bool,
    conclude: Callable[[], None],
    view: JobView | None,
    link: LauncherLink | None = None,
) -> int:
    """Start the workers, watch them until they end, print the exit report, and return the code to exit with.

    `conclude` is called between the last output of the workers and the report.
    """
    relay = Relay(None if view is None else view.listen)
    endings: Sequence[WorkerExit] = ()
    interrupted_by: signal.Signals | None = None
    try:
        with prepared as specs, closing(CleanupGuard()) as guard, catch_signals() as signals:
            supervisor = Supervisor(guard, notify=notify, mute_stderr=lambda: relay.mute(STDERR), link=link)
            visible = VisibleRanks.FIRST if quiet_ranks else VisibleRanks.ALL
            if view is not None:
                guard.remove(view.folder)
                view.start(specs, supervisor.endings)
                visible = view.visible or visible
            try:
                _run(supervisor, signals, specs=specs, relay=relay, visible=visible)
            finally:
                if view is not None:
                    view.collect()  # before the guard ends, which removes its folder
        endings, interrupted_by = supervisor.endings, supervisor.shutdown.interrupted_by
        relay.finish(None if supervisor.went_well else FLUSH_S)
        conclude()
    except KeyboardInterrupt:
        interrupted_by = signal.SIGINT
    with_output = [replace(ending, error=relay.tail(ending.rank)) for ending in endings]
    remote = RemoteFailure(link.cause, link.cause_s) if link is not None and link.cause else None
    report = make_exit_report(with_output, interrupted_by=interrupted_by, remote=remote)
    if view is not None:
        view.finish(report.summary)
    with suppress(KeyboardInterrupt):  # a user who interrupts again does not want the report
        print_lines(*report.lines)
    return report.exit_code


@contextmanager
def _prepare_workers(
    job: Job, environ: Mapping[str, str], check: Callable[[HostAssignment], None], link: LauncherLink
) -> Iterator[list[WorkerSpec]]:
    """Meet the other hosts, and yield a spec for each worker of this host."""
    with join_hosts(job, notify, link) as assignment:
        if assignment.is_checked:
            check(assignment)
        environ = {**environ, "UNDERTOW_START_MARKS": link.marks.path}
        clear_traces(read_job_settings(environ))  # no host starts a worker before all launchers are past this
        if limits_threads(environ, nproc=assignment.nproc):
            notify("OMP_NUM_THREADS is 1 in each worker, so that they share the cores; set it to choose another number")
        yield [
            WorkerSpec(
                command=(sys.executable, "-u", *job.command),
                environment=build_environment(environ, assignment, local_rank=rank),
                host=socket.gethostname(),
                has_stdin=rank == 0,
            )
            for rank in range(assignment.nproc)
        ]


def _run(
    supervisor: Supervisor, signals: Signals, *, specs: Sequence[WorkerSpec], relay: Relay, visible: VisibleRanks
) -> None:
    """Start all workers, watch them, and kill what they leave behind."""
    _adopt_orphans()
    try:
        for spec in specs:
            supervisor.adopt(start_worker(spec, relay=relay, visible=visible))
        relay.start()
        supervisor.watch(signals)
        if supervisor.went_well:
            relay.wait(LEFTOVERS_S)
    finally:
        supervisor.sweep()


def _adopt_orphans() -> None:
    """Become the parent of orphaned grandchildren, so that they can be found at the end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
