"""Notes of a worker for its own launcher, in files without a name: how far its start is, and which loss ended it.

In: a worker waits for others, or has met them; the error that ends its script.
Out: start marks, which the launcher reads at any time; the first loss, read when the worker has ended.
The launcher needs no thread and no socket for them, and a worker can write while any launcher is stopped.  What a
worker prints is for people, and may be anything.  A worker opens the files through /proc, by the paths in
UNDERTOW_START_MARKS and UNDERTOW_LOSS_NOTE; one that cannot goes on without.
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
    WAITS = 1  # for ranks that torch knows, perhaps not for all
    WAITS_FOR_ALL = 2
    MET = 3  # it needs them from now on; stays


class StartMarks(UnnamedFile):
    """Marks of a launcher's workers, one byte for each, by local rank."""

    def __init__(self) -> None:
        super().__init__("undertow-start-marks")

    def read(self, count: int) -> list[Mark]:
        """Return the marks of the first `count` workers; where there is no such file, all count as waiting."""
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
    """Mark a worker as waiting inside of the block; `then` is its mark after the block has succeeded."""
    _mark(path, local_rank, mark)
    try:
        yield
    except BaseException:
        _mark(path, local_rank, Mark.NONE)
        raise
    _mark(path, local_rank, then)


def _mark(path: str, local_rank: int, mark: Mark) -> None:
    # The launcher may be gone, or in another container.
    with contextlib.suppress(OSError), open(path, "r+b") as file:
        if os.pread(file.fileno(), 1, local_rank) != bytes([Mark.MET]):
            os.pwrite(file.fileno(), bytes([mark]), local_rank)


class LossNote(UnnamedFile):
    """The launcher's side of one worker's note."""

    def __init__(self) -> None:
        super().__init__("undertow-loss-note")

    def read(self) -> PeerLost | None:
        """Return the loss because of which the worker has ended, if it has noted one."""
        if self.fd is None:
            return None
        with contextlib.suppress(Garbled):
            error = read_error(self.fd)
            return error if isinstance(error, PeerLost) else None
        return None


def note_loss(*errors: BaseException | None) -> None:
    """Tell the launcher, if there is one, of the first loss that one of these errors is or follows from."""
    loss = next((each for error in errors for each in _follow(error) if isinstance(each, PeerLost)), None)
    if loss is None:
        return
    # The launcher may be gone, or not to be seen from here.
    with contextlib.suppress(ConfigError, OSError), open(read_settings().loss_note, "r+b") as file:
        file.truncate(0)
        write_error(loss, file.fileno())


def _follow(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that a traceback would show with it."""
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
