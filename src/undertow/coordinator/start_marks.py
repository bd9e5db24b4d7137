"""What each worker of a host says of its start to its own launcher: one byte per worker in a file without a name.

In: a worker waits for others, or has met them.  Out: its mark, which the launcher reads when it likes.
The launcher needs no thread and no socket for it, and a worker can say that it waits while any launcher is stopped.
A worker opens the file through /proc, by the path in UNDERTOW_START_MARKS; one that cannot goes on without.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterator


class Mark(enum.IntEnum):
    """How far a worker is."""

    NONE = 0
    WAITS = 1  # for ranks that torch knows, perhaps not for all
    WAITS_FOR_ALL = 2
    MET = 3  # it needs them from now on; stays


class StartMarks:
    """The launcher's side: the marks of its workers, by local rank."""

    def __init__(self) -> None:
        self._fd = _open_memory()

    @property
    def path(self) -> str:
        return "" if self._fd is None else f"/proc/{os.getpid()}/fd/{self._fd}"

    def read(self, count: int) -> list[Mark]:
        """The marks of the first `count` workers; where workers cannot say it, all count as waiting."""
        if self._fd is None:
            return [Mark.WAITS] * count
        data = os.pread(self._fd, count, 0)
        return [_parse(byte) for byte in data.ljust(count, b"\0")]

    def clear(self, local_rank: int) -> None:
        """Forget the mark of a worker that has ended, unless it had met the others."""
        if self._fd is not None and self.read(local_rank + 1)[local_rank] is not Mark.MET:
            os.pwrite(self._fd, bytes([Mark.NONE]), local_rank)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _open_memory() -> int | None:
    """A file without a name that other processes can open; None where the system has or allows none."""
    try:
        fd = os.memfd_create("undertow-start-marks")
    except (AttributeError, OSError):
        return None
    if os.access(f"/proc/{os.getpid()}/fd/{fd}", os.R_OK | os.W_OK):
        return fd
    os.close(fd)
    return None


@contextlib.contextmanager
def waiting(path: str, local_rank: int, mark: Mark, *, then: Mark = Mark.NONE) -> Iterator[None]:
    """The worker's side: it waits inside; `then` is its mark if that went well."""
    _write(path, local_rank, mark)
    try:
        yield
    except BaseException:
        _write(path, local_rank, Mark.NONE)
        raise
    _write(path, local_rank, then)


def _write(path: str, local_rank: int, mark: Mark) -> None:
    if not path:
        return
    with contextlib.suppress(OSError):  # the launcher is gone, or not to be seen from here
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.pread(fd, 1, local_rank) != bytes([Mark.MET]):
                os.pwrite(fd, bytes([mark]), local_rank)
        finally:
            os.close(fd)


def _parse(byte: int) -> Mark:
    return Mark(byte) if byte in set(Mark) else Mark.NONE
