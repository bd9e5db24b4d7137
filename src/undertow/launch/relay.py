"""The relay: one thread that copies all workers' output to the terminal or file, each line with a prefix.

In: the reading ends of the workers' pipes.  Out: bytes on stdout and stderr, and
the last lines of every rank's stderr for the report after a failure.
It never stops reading: a hanging reader of our output must not block the training.
A line is shown when it is complete, so lines of different ranks never mix; a carriage
return ends a line as well, so progress bars move and keep their prefix.
Nothing is decoded: the bytes that a worker writes arrive unchanged.
"""

from __future__ import annotations

import enum
import fcntl
import os
import re
import selectors
import struct
import termios
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from undertow.engine.wire import streams
from undertow.launch.launcher_output import write_some
from undertow.plain_text import show_line

CHUNK_BYTES = 1 << 16
TAIL_LINES = 200
TAIL_LINE_BYTES = 8192
# Longer lines are broken, so that a line without an end cannot fill the memory.
MAX_LINE_BYTES = 16 << 20

_COLOURS = (36, 33, 35, 32, 34, 31)  # cyan, yellow, magenta, green, blue, red
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")


@dataclass(eq=False)
class _Stream:
    rank: int
    source_fd: int
    target_fd: int
    shown: StreamDisplay
    lines: PrefixedLines
    tail: Tail | None
    unshown: bytes = b""  # read by `finish` for the tail, not shown yet


class Relay:
    """The thread that copies the workers' output: `add` every stream, `start`, and `finish` when all have ended."""

    def __init__(self, listen: Callable[[int, bytes], None] | None = None) -> None:
        self._listen = listen  # called with 1 or 2, and what rank 0 writes there
        self._tails: dict[int, Tail] = {}
        self._selector = selectors.DefaultSelector()
        self._ending = threading.Event()
        self._wake_out, self._wake_in = os.pipe()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._reading = threading.Lock()  # held to read a stream, and to change what is registered
        self._closed: set[int] = set()  # targets that are muted, or closed by their reader
        self._thread = threading.Thread(target=self._run, name="undertow-relay", daemon=True)

    def add(self, source_fd: int, target_fd: int, *, rank: int, shown: StreamDisplay, prefix: bytes = b"") -> None:
        """Copy one stream; the last lines of stderr are kept for the report as well.  The relay closes `source_fd`."""
        tail = self._tails.setdefault(rank, Tail()) if target_fd == 2 else None
        stream = _Stream(rank, source_fd, target_fd, shown, PrefixedLines(prefix), tail)
        self._selector.register(source_fd, selectors.EVENT_READ, stream)

    def start(self) -> None:
        self._thread.start()

    def mute(self, target_fd: int) -> None:
        """Stop showing streams with this target; they are still read."""
        self._closed.add(target_fd)

    def wait(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def finish(self, timeout_s: float | None) -> None:
        """Copy what has been written so far, then stop; with None, wait for a slow reader of our output."""
        self._ending.set()
        os.write(self._wake_in, b"x")
        self._thread.join(timeout_s)
        if self._thread.is_alive():  # it waits for a slow reader, but the tails must be complete now
            with self._reading:
                for stream in self._streams():
                    self._fetch(stream)

    def tail(self, rank: int) -> tuple[str, ...]:
        """Return the last lines of a rank's stderr; complete after `finish`."""
        return self._tails[rank].lines() if rank in self._tails else ()

    def _run(self) -> None:
        while self._streams() and not self._ending.is_set():
            for key, _ in self._selector.select():
                if key.data:  # else: woken by `finish`
                    self._copy(key.data)
        for stream in self._streams():
            self._drain(stream)

    def _streams(self) -> list[_Stream]:
        return [key.data for key in self._selector.get_map().values() if key.data]

    def _copy(self, stream: _Stream) -> None:
        with self._reading:
            if self._ending.is_set():
                return  # `finish` may have read everything
            data = self._read(stream, CHUNK_BYTES)
        if data:
            self._show(stream, data)
        else:
            self._end(stream)

    def _drain(self, stream: _Stream) -> None:
        with self._reading:
            self._fetch(stream)
            data, stream.unshown = stream.unshown, b""
        if data:
            self._show(stream, data)
        self._end(stream)

    def _fetch(self, stream: _Stream) -> None:
        """Read what is in the pipe, without waiting for more."""
        # The workers have ended, so all that they wrote is in the pipe by now; a detached
        # process may still hold the other end open.
        left_bytes = count_readable(stream.source_fd)
        while left_bytes and (data := self._read(stream, left_bytes)):
            stream.unshown += data
            left_bytes -= len(data)

    def _read(self, stream: _Stream, limit_bytes: int) -> bytes:
        data = _read(stream.source_fd, limit_bytes)
        if stream.tail:
            stream.tail.feed(data)
        return data

    def _show(self, stream: _Stream, data: bytes) -> None:
        if self._listen is not None and stream.rank == 0:
            self._listen(stream.target_fd, data)
        if stream.shown is StreamDisplay.RAW:
            self._write(stream.target_fd, data)
        elif stream.shown is StreamDisplay.PREFIXED:
            self._write(stream.target_fd, stream.lines.feed(data))

    def _end(self, stream: _Stream) -> None:
        with self._reading:
            self._selector.unregister(stream.source_fd)
            os.close(stream.source_fd)
        self._write(stream.target_fd, stream.lines.finish())

    def _write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view and fd not in self._closed:
            try:
                view = view[write_some(fd, view) :]
            except OSError:
                self._closed.add(fd)


def count_readable(fd: int) -> int:
    """Return how many bytes wait in a pipe or pseudo-terminal."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0])


def _read(fd: int, limit_bytes: int) -> bytes:
    try:
        return os.read(fd, limit_bytes)
    except OSError:
        return b""  # EIO: the other side of a pseudo-terminal is closed


class StreamDisplay(enum.Enum):
    """The form in which a stream is shown."""

    PREFIXED = "prefixed"
    RAW = "raw"
    HIDDEN = "hidden"


class VisibleRanks(enum.Enum):
    """Which ranks' output the user sees."""

    ALL = "all"  # every line with its rank
    FIRST = "first"  # only rank 0's, unchanged
    BESIDE = "beside"  # only rank 0's, and nothing on a terminal, because a view is drawn there


def make_prefix(rank: int, *, coloured: bool, name: str = "") -> bytes:
    """Return the prefix of a rank's lines, or of a job's if `name` is given; neighbouring ranks differ in colour."""
    text = f"[{name or f'rank {rank}'}] "
    return f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m".encode() if coloured else text.encode()


class PrefixedLines:
    """A stream cut into lines, with a prefix before each."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._pending: list[bytes] = []  # the unfinished line, joined only when its end comes
        self._size_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes of the stream, and return what can be shown now."""
        return_pending = bool(self._pending) and self._pending[-1].endswith(b"\r")
        self._pending.append(data)
        self._size_bytes += len(data)
        if not return_pending and b"\n" not in data and b"\r" not in data:
            return self.finish() if self._size_bytes > MAX_LINE_BYTES else b""
        text = b"".join(self._pending)
        # A carriage return at the very end may be half of \r\n: it waits for the next byte.
        end = 1 + max(text.rfind(b"\n"), text.rfind(b"\r", 0, len(text) - 1))
        self._pending, self._size_bytes = [text[end:]], len(text) - end
        return b"".join(line if line == b"\r" else self._prefix + line for line in _LINE.findall(text[:end]))

    def finish(self) -> bytes:
        """Return the unfinished line and a newline, because the stream has ended."""
        text = b"".join(self._pending)
        self._pending, self._size_bytes = [], 0
        return self._prefix + text + b"\n" if text else b""


class Tail:
    """The last lines of a stream, for the report after a failure."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._stream = streams.Lines(TAIL_LINE_BYTES)
        self._cut = False

    def feed(self, data: bytes) -> None:
        lines = self._stream.feed(data)
        self._cut = self._cut or len(self._lines) + len(lines) > TAIL_LINES
        self._lines.extend(lines)

    def lines(self) -> tuple[str, ...]:
        """Return what a terminal would show: the last state of an overwritten line."""
        shown = map(show_line, [*self._lines, *filter(None, [self._stream.rest])])
        return ("(earlier lines left out)", *shown) if self._cut else tuple(shown)
