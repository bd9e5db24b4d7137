"""The launcher's own messages: lines on stderr that can neither fail nor block the job.

In: text.  Out: bytes on stderr, as long as its reader makes progress.
A daemon thread writes; it is abandoned when it makes no progress.
select() would not do, because the relay writes to the same pipe, and O_NONBLOCK would
change the terminal for all processes that share it.  `print` is not used, because its buffer
is flushed once more at exit, and a failure of that flush would change the exit code.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Sequence

from undertow.plain_text import clean_lines

STDERR = 2
CHUNK_BYTES = 4096
# How long a reader of our stderr may take for one chunk.
STALL_S = 1.0


class _Writer(threading.Thread):
    def __init__(self, data: bytes) -> None:
        super().__init__(name="undertow-stderr", daemon=True)
        self.left = memoryview(data)

    def run(self) -> None:
        try:
            while self.left:
                self.left = self.left[write_some(STDERR, self.left[:CHUNK_BYTES]) :]
        except OSError:
            pass  # the reader is gone, or the disk is full: a lost line is no reason to fail


_redirection: Callable[[Sequence[str]], None] | None = None


def redirect(take: Callable[[Sequence[str]], None] | None) -> None:
    """Pass all further lines to `take`, because a dashboard owns the terminal; None restores stderr."""
    global _redirection
    _redirection = take


def print_lines(*lines: str) -> None:
    """Write lines to stderr; return when they are written, or when the reader makes no progress."""
    lines = tuple(map(clean_lines, lines))  # they may quote a worker, a peer or a file
    if _redirection is not None:
        return _redirection(lines)
    writer = _Writer("".join(line + "\n" for line in lines).encode(errors="replace"))
    try:
        writer.start()
    except RuntimeError:
        return writer.run()  # the system has no thread left: write here, which may block
    left_bytes = -1
    while writer.is_alive() and left_bytes != len(writer.left):
        left_bytes = len(writer.left)
        writer.join(STALL_S)


def notify(text: str) -> None:
    """Write one line, marked as undertow's own."""
    print_lines(f"undertow: {text}")


def write_some(fd: int, data: memoryview) -> int:
    """Call os.write; if another process made our output non-blocking, wait until it is writable."""
    while True:
        try:
            return os.write(fd, data)
        except BlockingIOError:
            select.select([], [fd], [])


class _NotifyHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        notify(record.getMessage())


def print_log_records() -> None:
    """Print what undertow logs in this process as lines of the launcher."""
    log = logging.getLogger("undertow")
    log.addHandler(_NotifyHandler())
    log.propagate = False
