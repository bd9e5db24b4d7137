"""Notes from a worker to its launcher, in unnamed files: the progress of its start, and the loss that ended it.

In: a worker waits for others or has met them; the error that ends its script.
Out: start marks, which the launcher can read at any time; the first loss, which it reads after the worker has ended.
The launcher needs neither a thread nor a socket for these files, and a worker can write while a launcher is stopped.
A worker's output would not do: it is for people and may be anything.  A worker opens the files through /proc, by the
paths in UNDERTOW_START_MARKS and UNDERTOW_LOSS_NOTE; if it cannot, it continues without them.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterator

from undertow.error_transfer import read_error, write_error
from undertow.errors import ConfigError, Garbled, PeerLost
from undertow.files import UnnamedFile
from undertow.settings import read_settings


class Mark(enum.IntEnum):
    """Progress of a worker's start."""

    NONE = 0
    WAITS = 1  # for other ranks, perhaps not for all
    WAITS_FOR_ALL = 2
    MET = 3  # has met the others and needs them from now on; never changes again


class StartMarks(UnnamedFile):
    """Marks of a launcher's workers, one byte per worker, by local rank."""

    def __init__(self) -> None:
        super().__init__("undertow-start-marks")

    def read(self, count: int) -> list[Mark]:
        """Return the marks of the first `count` workers.  If there is no file, all of them count as waiting."""
        if self.fd is None:
            return [Mark.WAITS] * count
        data = os.pread(self.fd, count, 0)
        return [Mark(byte) if byte in set(Mark) else Mark.NONE for byte in data.ljust(count, b"\0")]

    def clear(self, local_rank: int) -> None:
        """Forget the mark of a worker that has ended, unless it had met the others."""
        if self.fd is not None and self.read(local_rank + 1)[local_rank] is not Mark.MET:
            os.pwrite(self.fd, bytes([Mark.NONE]), local_rank)


@contextlib.contextmanager
def waiting(path: str, local_rank: int, mark: Mark, *, then: Mark = Mark.NONE) -> Iterator[None]:
    """Mark a worker as waiting within the block; `then` is its mark after the block has succeeded."""
    _mark(path, local_rank, mark)
    try:
        yield
    except BaseException:
        _mark(path, local_rank, Mark.NONE)
        raise
    _mark(path, local_rank, then)


def _mark(path: str, local_rank: int, mark: Mark) -> None:
    # The launcher may have ended, or be in another container.
    with contextlib.suppress(OSError), open(path, "r+b") as file:
        if os.pread(file.fileno(), 1, local_rank) != bytes([Mark.MET]):
            os.pwrite(file.fileno(), bytes([mark]), local_rank)


class LossNote(UnnamedFile):
    """Loss note of one worker, on the launcher's side."""

    def __init__(self) -> None:
        super().__init__("undertow-loss-note")

    def read(self) -> PeerLost | None:
        """Return the loss that ended the worker, if it has noted one."""
        if self.fd is None:
            return None
        with contextlib.suppress(Garbled):
            error = read_error(self.fd)
            return error if isinstance(error, PeerLost) else None
        return None


def note_loss(*errors: BaseException | None) -> None:
    """Report to the launcher, if any, the first loss that is one of these errors or caused one of them."""
    loss = next((each for error in errors for each in list_shown(error) if isinstance(each, PeerLost)), None)
    if loss is None:
        return
    # The launcher may have ended, or be invisible from here.
    with contextlib.suppress(ConfigError, OSError), open(read_settings().loss_note, "r+b") as file:
        file.truncate(0)
        write_error(loss, file.fileno())


def list_shown(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that a traceback would show with it."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left.append(one.__cause__ or (None if one.__suppress_context__ else one.__context__))
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
