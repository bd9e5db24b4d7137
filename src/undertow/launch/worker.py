"""Start of one worker process, with its output streams.

In: a `WorkerSpec`, the relay.  Out: a running process in a session of its own, so that
its whole process group (its children too) can be ended.
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

from undertow.launch.relay import Relay, StreamDisplay, VisibleRanks, make_prefix
from undertow.runtime.launcher_notes import LossNote


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """Command, environment and host of a worker."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    host: str
    has_stdin: bool = False  # for at most one worker, so that a debugger works in it
    entered: Callable[[], AbstractContextManager[None]] = nullcontext  # around its start, to enter an emulated host

    @property
    def rank(self) -> int:
        return int(self.environment["RANK"])


@dataclass(frozen=True, eq=False)
class Worker:
    """A started worker, until the supervisor has reaped it."""

    rank: int
    host: str
    process: subprocess.Popen[bytes]
    note: LossNote

    @property
    def pid(self) -> int:
        return self.process.pid

    def peek_exit_code(self) -> int | None:
        """Return the exit code, or None while the worker lives.

        The worker is not reaped: it stays a zombie, so that its process group id is not reused.
        """
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def start_worker(spec: WorkerSpec, *, relay: Relay, visible: VisibleRanks) -> Worker:
    """Start one worker; `visible` decides whether its output is shown."""
    rank, note = spec.rank, LossNote()
    with ExitStack() as undo:
        undo.callback(note.close)
        streams = []
        for fd in (1, 2):
            streams.append(_open_stream(fd, rank=rank, visible=visible))
            undo.callback(streams[-1].close)
        with spec.entered():
            process = subprocess.Popen(
                spec.command,
                env={**spec.environment, "UNDERTOW_LOSS_NOTE": note.path},
                stdin=None if spec.has_stdin else subprocess.DEVNULL,
                stdout=streams[0].writer,
                stderr=streams[1].writer,
                start_new_session=True,
            )
        undo.pop_all()
    for stream in streams:
        stream.hand_over(relay, rank=rank)
    return Worker(rank, spec.host, process, note)


@dataclass
class _OutputStream:
    """A worker's stdout (1) or stderr (2), and the pipe or terminal that carries it."""

    target_fd: int
    shown: StreamDisplay
    prefix: bytes = b""
    reader: int | None = None  # None: the worker inherits the launcher's stream
    writer: int | None = None

    def hand_over(self, relay: Relay, *, rank: int) -> None:
        if self.reader is None or self.writer is None:
            return
        os.close(self.writer)
        relay.add(self.reader, self.target_fd, rank=rank, shown=self.shown, prefix=self.prefix)

    def close(self) -> None:
        """Close both ends if the worker could not be started: ending the job needs free file descriptors."""
        for fd in (self.reader, self.writer):
            if fd is not None:
                os.close(fd)


def _open_stream(fd: int, *, rank: int, visible: VisibleRanks) -> _OutputStream:
    terminal = os.isatty(fd)
    if visible is VisibleRanks.ALL:
        prefix = make_prefix(rank, coloured=terminal and not os.environ.get("NO_COLOR"))
        return _OutputStream(fd, StreamDisplay.PREFIXED, prefix, *os.pipe())
    if rank != 0 or (visible is VisibleRanks.BESIDE and terminal):
        return _OutputStream(fd, StreamDisplay.HIDDEN, b"", *os.pipe())
    if not terminal:
        return _OutputStream(fd, StreamDisplay.RAW, b"", *os.pipe())
    if fd == 1:
        return _OutputStream(fd, StreamDisplay.RAW)  # the terminal itself, so that progress bars work
    return _OutputStream(fd, StreamDisplay.RAW, b"", *_open_terminal(fd))


def _open_terminal(like_fd: int) -> tuple[int, int]:
    """Open a pseudo-terminal: the worker sees a terminal, and the relay can still keep its last lines."""
    reader, writer = pty.openpty()
    tty.setraw(writer)  # bytes unchanged: the real terminal does the rest
    size = fcntl.ioctl(like_fd, termios.TIOCGWINSZ, struct.pack("4H", 0, 0, 0, 0))
    fcntl.ioctl(writer, termios.TIOCSWINSZ, size)
    return reader, writer
