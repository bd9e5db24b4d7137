"""The relay: one thread that carries all workers' output to the terminal or file.

In: the reading ends of the workers' pipes.  Out: bytes on stdout and stderr, and
the tail of every rank's stderr for the report after a failure.
It never stops reading: a user who went away must not block the training.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import struct
import termios
import threading
from collections.abc import Callable
from dataclasses import dataclass

from undertow.launch.output import Lines, Shown, Tail
from undertow.launch.speech import write_some

CHUNK_BYTES = 1 << 16


@dataclass(eq=False)
class _Stream:
    rank: int
    source_fd: int
    target_fd: int
    shown: Shown
    lines: Lines
    tail: Tail | None
    unshown: bytes = b""  # read at the end, because the tail had to be complete


class Relay:
    """`add` every stream, then `start`; `finish` once the workers have ended."""

    def __init__(self, listen: Callable[[int, bytes], None] | None = None) -> None:
        self._listen = listen  # told what rank 0 writes, and whether to 1 or 2
        self._tails: dict[int, Tail] = {}
        self._selector = selectors.DefaultSelector()
        self._ending = threading.Event()
        self._wake_out, self._wake_in = os.pipe()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._reading = threading.Lock()  # also around what is registered
        self._closed: set[int] = set()  # targets that nobody reads any more, or should not
        self._thread = threading.Thread(target=self._run, name="undertow-relay", daemon=True)

    def add(self, source_fd: int, target_fd: int, *, rank: int, shown: Shown, prefix: bytes = b"") -> None:
        """Carry one stream; what goes to stderr is kept for the report as well.  The relay closes `source_fd`."""
        tail = self._tails.setdefault(rank, Tail()) if target_fd == 2 else None
        stream = _Stream(rank, source_fd, target_fd, shown, Lines(prefix), tail)
        self._selector.register(source_fd, selectors.EVENT_READ, stream)

    def start(self) -> None:
        self._thread.start()

    def mute(self, target_fd: int) -> None:
        """From now on show nothing there; it is read all the same."""
        self._closed.add(target_fd)

    def wait(self, timeout_s: float) -> None:
        """Give the streams time to end by themselves."""
        self._thread.join(timeout_s)

    def finish(self, timeout_s: float | None) -> None:
        """Carry what has been written until now, and stop; None waits for a slow reader of ours."""
        self._ending.set()
        os.write(self._wake_in, b"x")
        self._thread.join(timeout_s)
        if self._thread.is_alive():  # it hangs on a slow reader: the tails must be complete all the same
            with self._reading:
                for stream in self._streams():
                    self._fetch(stream)

    def tail(self, rank: int) -> tuple[str, ...]:
        """The last lines of a rank's stderr; complete after `finish`."""
        return self._tails[rank].lines() if rank in self._tails else ()

    def _run(self) -> None:
        while self._streams() and not self._ending.is_set():
            for key, _ in self._selector.select():
                if key.data:  # else: woken by `finish`
                    self._carry(key.data)
        for stream in self._streams():
            self._drain(stream)

    def _streams(self) -> list[_Stream]:
        return [key.data for key in self._selector.get_map().values() if key.data]

    def _carry(self, stream: _Stream) -> None:
        with self._reading:
            if self._ending.is_set():
                return  # what can be read may have been fetched
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
        """Read what is there, without waiting for more."""
        # The workers have ended, so all that they wrote is in the pipe by now; a detached
        # process that still holds the other end is not waited for.
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
        if stream.shown is Shown.RAW:
            self._write(stream.target_fd, data)
        elif stream.shown is Shown.PREFIXED:
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
    """How many bytes wait in a pipe or pseudo-terminal."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0])


def _read(fd: int, limit_bytes: int) -> bytes:
    try:
        return os.read(fd, limit_bytes)
    except OSError:
        return b""  # a pseudo-terminal whose other side closed says EIO
