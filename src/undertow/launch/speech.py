"""The launcher's own words: lines on stderr that can neither end the job nor hold up its end.

In: text.  Out: bytes on stderr, as far as somebody takes them.
The writing is done by a daemon thread that is left behind when it makes no progress:
select() would not do, because the relay writes to the same pipe, and O_NONBLOCK would
change the terminal for everybody who shares it.  `print` is not used, because its buffer
would be flushed once more at the exit, and change the exit code if that fails.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Sequence

from undertow.plain_text import clean_lines

STDERR = 2
PIECE_BYTES = 4096
# How long a reader of our stderr may take for one piece.
PATIENCE_S = 1.0


class _Speech(threading.Thread):
    def __init__(self, data: bytes) -> None:
        super().__init__(name="undertow-speech", daemon=True)
        self.left = memoryview(data)

    def run(self) -> None:
        try:
            while self.left:
                self.left = self.left[write_some(STDERR, self.left[:PIECE_BYTES]) :]
        except OSError:
            pass  # nobody listens, or the disk is full: a lost line is no reason to fail


_divert: Callable[[Sequence[str]], None] | None = None


def divert(take: Callable[[Sequence[str]], None] | None) -> None:
    """From now on lines are handed over instead, to whoever has the terminal for itself; None ends that."""
    global _divert
    _divert = take


def say(*lines: str) -> None:
    """Write lines to stderr; returns as soon as it is done or nobody reads any more."""
    lines = tuple(map(clean_lines, lines))  # they may quote a worker, a peer or a file
    if _divert is not None:
        return _divert(lines)
    speech = _Speech("".join(line + "\n" for line in lines).encode(errors="replace"))
    try:
        speech.start()
    except RuntimeError:
        return speech.run()  # no thread to be had: better late than never
    left_bytes = -1
    while speech.is_alive() and left_bytes != len(speech.left):
        left_bytes = len(speech.left)
        speech.join(PATIENCE_S)


def notify(text: str) -> None:
    """One line from the launcher itself."""
    say(f"undertow: {text}")


def write_some(fd: int, data: memoryview) -> int:
    """As os.write, also where somebody made our output non-blocking."""
    while True:
        try:
            return os.write(fd, data)
        except BlockingIOError:
            select.select([], [fd], [])


class _Notices(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        notify(record.getMessage())


def speak_for_the_log() -> None:
    """What undertow logs in this process comes out as notices of the launcher."""
    log = logging.getLogger("undertow")
    log.addHandler(_Notices())
    log.propagate = False
