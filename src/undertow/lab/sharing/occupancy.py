"""A replayed device that workers of several jobs share, one per emulated host.

In: "I need it for so long, from then on".  Out: when that is done.
Operations are served one at a time in the order in which they come, as a device does that is handed from
process to process between operations.  What all processes see is one number in a file: when the device is free.
The clock is the machine's monotonic one, which all processes have in common.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from pathlib import Path

_FREE_AT = struct.Struct("=d")


def place_device(folder: str | os.PathLike[str], host: int) -> Path:
    """Where the device of this host is."""
    return Path(folder) / f"device{host}"


def make_devices(folder: Path, hosts: int) -> None:
    """Of so many hosts; all are free."""
    for host in range(hosts):
        place_device(folder, host).write_bytes(_FREE_AT.pack(0.0))


class SharedOccupancy:
    """One worker's view; used by one thread."""

    def __init__(self, path: Path) -> None:
        # A file of its own in every worker: who has opened it is who holds its lock.
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._page = mmap.mmap(self._file, _FREE_AT.size)

    def occupy(self, begin_s: float, seconds: float) -> float:
        """Returns at once with the end; the caller sleeps until then, without the lock."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            (free_at_s,) = _FREE_AT.unpack_from(self._page)
            end_s: float = max(begin_s, free_at_s) + seconds
            _FREE_AT.pack_into(self._page, 0, end_s)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return end_s

    def close(self) -> None:
        self._page.close()
        os.close(self._file)
