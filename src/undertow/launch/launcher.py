"""The story of one job, from the first worker to the last word.

In: a checked `Job`, or the posts of an emulated cluster.  Out: an exit code; everything that was started has ended.
Belongs to a process of its own: it handles signals, adopts orphans and, when a job
fails or is interrupted, kills whatever is left below this process.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from undertow.launch.environment import build_environment, limits_threads
from undertow.launch.failure import Elsewhere, Ending, decide
from undertow.launch.guard import Guard
from undertow.launch.host_line import HostLine
from undertow.launch.job import Job, read_job_settings
from undertow.launch.nodes import Seat, meet
from undertow.launch.output import Audible
from undertow.launch.relay import Relay
from undertow.launch.speech import STDERR, notify, say, speak_for_the_log
from undertow.launch.supervisor import Signals, Supervisor, catch_signals
from undertow.launch.traces import clear_traces, conclude_traces
from undertow.launch.worker import Post, start_worker
from undertow.live.opening import watch

if TYPE_CHECKING:
    from undertow.live.show import Show

PR_SET_CHILD_SUBREAPER = 36
# How long children that outlive their worker may go on writing before they are ended.
LEFTOVERS_S = 0.5
# How long a slow reader of our output may hold up the end of a job that did not end well.
LAST_WORDS_S = 1.0


def launch(job: Job, environ: Mapping[str, str], check: Callable[[Seat], None] = lambda seat: None) -> int:
    """Run the job; returns the code to exit with.

    `check` is called when the hosts have met, if one of them wishes it; an error of it ends the job before it starts.
    """
    speak_for_the_log()
    settings = read_job_settings(environ)
    line = HostLine()
    with watch(job.script, environ, live=job.live, port=job.live_port) as (show, own):
        return supervise(
            _posts(job, own, check, line),
            quiet_ranks=job.quiet_ranks,
            conclude=lambda: conclude_traces(settings, notify),
            show=show,
            line=line,
        )


def supervise(
    posts: AbstractContextManager[Sequence[Post]],
    *,
    quiet_ranks: bool,
    conclude: Callable[[], None] = lambda: None,
    show: Show | None = None,
    line: HostLine | None = None,
) -> int:
    """Fill the posts, watch the workers to their end and say how it went; returns the code to exit with.

    `conclude` has its say between the last output of the workers and the verdict.
    """
    relay = Relay(None if show is None else show.listen)
    endings: Sequence[Ending] = ()
    interrupted_by: signal.Signals | None = None
    try:
        with posts as to_fill, closing(Guard()) as guard, catch_signals() as signals:
            supervisor = Supervisor(guard, notify=notify, hush=lambda: relay.mute(STDERR), line=line)
            audible = Audible.FIRST if quiet_ranks else Audible.ALL
            if show is not None:
                guard.remove(show.folder)
                show.start(to_fill, supervisor.endings)
                audible = show.audible or audible
            try:
                _run(supervisor, signals, posts=to_fill, relay=relay, audible=audible)
            finally:
                if show is not None:
                    show.collect()  # before the guard ends, which removes its folder
        endings, interrupted_by = supervisor.endings, supervisor.shutdown.interrupted_by
        relay.finish(None if supervisor.went_well else LAST_WORDS_S)
        conclude()
    except KeyboardInterrupt:
        interrupted_by = signal.SIGINT
    heard = [replace(ending, error=relay.tail(ending.rank)) for ending in endings]
    elsewhere = Elsewhere(line.cause, line.cause_s) if line is not None and line.cause else None
    verdict = decide(heard, interrupted_by=interrupted_by, elsewhere=elsewhere)
    if show is not None:
        show.finish(verdict.summary)
    with suppress(KeyboardInterrupt):  # the user does not even want the last words
        say(*verdict.lines)
    return verdict.exit_code


@contextmanager
def _posts(job: Job, environ: Mapping[str, str], check: Callable[[Seat], None], line: HostLine) -> Iterator[list[Post]]:
    """One per worker on this host, once all hosts have met."""
    with meet(job, notify, line) as seat:
        if seat.is_checked:
            check(seat)
        environ = {**environ, "UNDERTOW_START_MARKS": line.marks.path}
        clear_traces(read_job_settings(environ))  # no worker of any host writes one before all have come here
        if limits_threads(environ, nproc=seat.nproc):
            notify("OMP_NUM_THREADS is 1 in each worker, so that they share the cores; set it to choose another number")
        yield [
            Post(
                command=(sys.executable, "-u", *job.command),
                environment=build_environment(environ, seat, local_rank=rank),
                host=socket.gethostname(),
                has_stdin=rank == 0,
            )
            for rank in range(seat.nproc)
        ]


def _run(supervisor: Supervisor, signals: Signals, *, posts: Sequence[Post], relay: Relay, audible: Audible) -> None:
    """Start all workers, watch them, and clean up behind them."""
    _adopt_orphans()
    try:
        for post in posts:
            supervisor.adopt(start_worker(post, relay=relay, audible=audible))
        relay.start()
        supervisor.watch(signals)
        if supervisor.went_well:
            relay.wait(LEFTOVERS_S)
    finally:
        supervisor.sweep()


def _adopt_orphans() -> None:
    """Let grandchildren whose parent died become our children, so that they can be found at the end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
