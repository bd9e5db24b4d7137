"""One worker process: how it is started, and what it is connected to.

In: the worker's post, the relay.  Out: a running process in a session of its own, so that
its whole group (its children too) can be ended.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import tty
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

from undertow.launch.output import Audible, Shown, make_prefix
from undertow.launch.relay import Relay


@dataclass(frozen=True, kw_only=True)
class Post:
    """What a worker runs, and where."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    host: str
    has_stdin: bool = False  # one worker at most: a debugger in it can be talked to
    entered: Callable[[], AbstractContextManager[None]] = nullcontext  # around its start: on an emulated host

    @property
    def rank(self) -> int:
        return int(self.environment["RANK"])


@dataclass(frozen=True, eq=False)
class Worker:
    rank: int
    host: str
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


def start_worker(post: Post, *, relay: Relay, audible: Audible) -> Worker:
    """Start one worker; `audible` decides whether it is seen."""
    rank = post.rank
    with ExitStack() as undo:
        streams = []
        for fd in (1, 2):
            streams.append(_open_stream(fd, rank=rank, audible=audible))
            undo.callback(streams[-1].close)
        with post.entered():
            process = subprocess.Popen(
                post.command,
                env=dict(post.environment),
                stdin=None if post.has_stdin else subprocess.DEVNULL,
                stdout=streams[0].writer,
                stderr=streams[1].writer,
                start_new_session=True,
            )
        undo.pop_all()
    for stream in streams:
        stream.hand_over(relay, rank=rank)
    return Worker(rank, post.host, process)


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


def _open_stream(fd: int, *, rank: int, audible: Audible) -> _Outlet:
    terminal = os.isatty(fd)
    if audible is Audible.ALL:
        prefix = make_prefix(rank, coloured=terminal and not os.environ.get("NO_COLOR"))
        return _Outlet(fd, Shown.PREFIXED, prefix, *os.pipe())
    if rank != 0 or (audible is Audible.BESIDE and terminal):
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
