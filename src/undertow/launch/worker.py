"""One worker process: how it is started, and what it is connected to.

In: the job, the place of the worker, the relay.  Out: a running process in a session
of its own, so that its whole group (its children too) can be ended.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import tty
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from undertow.launch.job import Job
from undertow.launch.output import Shown, make_prefix
from undertow.launch.relay import Relay


@dataclass(frozen=True, eq=False)
class Worker:
    rank: int
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def peek_code(self) -> int | None:
        """How it ended, None while it lives.  It stays a zombie, so that its group's number is not given away."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def start_worker(job: Job, environment: Mapping[str, str], *, relay: Relay) -> Worker:
    """Start one worker; its place is in its environment."""
    rank = int(environment["RANK"])
    with ExitStack() as undo:
        streams = []
        for fd in (1, 2):
            streams.append(_open_stream(job, fd, rank=rank))
            undo.callback(streams[-1].close)
        process = subprocess.Popen(
            [sys.executable, "-u", *job.command],
            env=dict(environment),
            # One reader at most: a debugger in the first worker can be talked to.
            stdin=None if environment["LOCAL_RANK"] == "0" else subprocess.DEVNULL,
            stdout=streams[0].writer,
            stderr=streams[1].writer,
            start_new_session=True,
        )
        undo.pop_all()
    for stream in streams:
        stream.hand_over(relay, rank=rank)
    return Worker(rank, process)


@dataclass
class _Outlet:
    """Where a worker's stdout (1) or stderr (2) goes; None is the launcher's own."""

    target_fd: int
    shown: Shown
    prefix: bytes = b""
    reader: int | None = None
    writer: int | None = None

    def hand_over(self, relay: Relay, *, rank: int) -> None:
        if self.reader is None or self.writer is None:
            return
        os.close(self.writer)
        relay.add(self.reader, self.target_fd, rank=rank, shown=self.shown, prefix=self.prefix)

    def close(self) -> None:
        """For a worker that could not be started: the end of the job needs free file descriptors."""
        for fd in (self.reader, self.writer):
            if fd is not None:
                os.close(fd)


def _open_stream(job: Job, fd: int, *, rank: int) -> _Outlet:
    terminal = os.isatty(fd)
    if not job.quiet_ranks:
        prefix = make_prefix(rank, coloured=terminal and not os.environ.get("NO_COLOR"))
        return _Outlet(fd, Shown.PREFIXED, prefix, *os.pipe())
    if rank != 0:
        return _Outlet(fd, Shown.HIDDEN, b"", *os.pipe())
    if not terminal:
        return _Outlet(fd, Shown.RAW, b"", *os.pipe())
    if fd == 1:
        return _Outlet(fd, Shown.RAW)  # the terminal itself, so that progress bars work
    return _Outlet(fd, Shown.RAW, b"", *_open_terminal(fd))


def _open_terminal(like_fd: int) -> tuple[int, int]:
    """A pseudo-terminal: the worker sees a terminal, and we can still keep its last words."""
    reader, writer = pty.openpty()
    tty.setraw(writer)  # bytes unchanged: the real terminal does the rest
    size = fcntl.ioctl(like_fd, termios.TIOCGWINSZ, struct.pack("4H", 0, 0, 0, 0))
    fcntl.ioctl(writer, termios.TIOCSWINSZ, size)
    return reader, writer
