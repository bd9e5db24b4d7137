"""Device of a replayed model: an emulated accelerator, whose operations only take time.

In: the duration of an operation.  Out: the call returns that much later.
The calling thread sleeps, so the CPU stays free for the network.
A real accelerator works through a queue that the training thread fills ahead of time, so it
loses nothing while that thread computes.  Here, the next sleep is shorter by the time that the
thread has computed since the last operation, by the time that it waited for one of the cores
that all emulated hosts share, and by the delay of its last wake-up; together by no more than a
queue holds (`QUEUE_S`).  Time spent waiting, mostly for the network, is never subtracted:
that is what is measured.
Workers of several jobs may share a device: then an operation also waits until the device is free.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

PR_SET_TIMERSLACK = 29

# How far a training thread runs ahead of its device; when it is later than that, the device has been idle.
QUEUE_S = 0.05

Clock = Callable[[], float]


class Occupancy(Protocol):
    """Device that a worker shares with others."""

    def occupy(self, begin_s: float, seconds: float) -> float:
        """Reserve the device for a time that begins at `begin_s` or when it is free; return the end."""


class Device:
    """Device of one worker, used by its training thread only."""

    def __init__(
        self,
        *,
        rank: int = 0,
        occupancy: Occupancy | None = None,
        clock: Clock = time.perf_counter,
        thread_clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._thread_clock, self._sleep = clock, thread_clock or BusyClock(), sleep
        self._occupancy = occupancy
        # The value of new gradients: different on each worker, so that a missing average is detected.
        # Small enough that hours of training do not move a parameter far.
        self.gradient = 1e-4 * (1 + rank)
        self._end_s = clock()  # when the last operation returned
        self._late_s = 0.0  # how long ago the last operation should have ended; never negative
        self._used_s = self._thread_clock()  # the thread's clock at the end of the last operation

    def compute(self, seconds: float) -> None:
        """Run an operation of this duration: return when it is done."""
        now_s = self._clock()
        worked_s = self._thread_clock() - self._used_s
        # Waiting makes up for lateness: what the thread waited for would not have arrived earlier.
        waited_s = max(0.0, now_s - self._end_s - worked_s)
        hidden_s = min(QUEUE_S, max(0.0, self._late_s - waited_s) + worked_s)
        end_s = now_s - hidden_s + seconds
        if self._occupancy is not None and seconds > 0:
            # Hidden time passed while the operation was queued: it may begin in the past, if the device was free.
            end_s = self._occupancy.occupy(now_s - hidden_s, seconds)
            now_s = self._clock()
        if end_s > now_s:
            self._sleep(end_s - now_s)
        self._end_s, self._used_s = self._clock(), self._thread_clock()
        self._late_s = max(0.0, self._end_s - end_s)


_FREE_AT = struct.Struct("=d")


def place_device(folder: str | os.PathLike[str], host: int) -> Path:
    """Return the path of the file of this host's device."""
    return Path(folder) / f"device{host}"


def make_devices(folder: Path, hosts: int) -> None:
    """Make the devices of these hosts; all are free."""
    for host in range(hosts):
        place_device(folder, host).write_bytes(_FREE_AT.pack(0.0))


class SharedOccupancy:
    """Device that workers of several jobs share, one per emulated host, as seen by one worker; used by one thread.

    Operations run one at a time in order of arrival, as on a device that switches between processes after an
    operation.  The processes share one number in a file: when the device is free, on the machine's monotonic clock.
    """

    def __init__(self, path: Path) -> None:
        # Every worker opens the file itself, because the lock belongs to the open file.
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._page = mmap.mmap(self._file, _FREE_AT.size)

    def occupy(self, begin_s: float, seconds: float) -> float:
        """Return immediately with the end of the operation; the caller sleeps until then, without the lock."""
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


class BusyClock:
    """Clock of the time that the calling thread has computed, or would have with a core of its own."""

    def __init__(self) -> None:
        self._delays = -1
        with suppress(OSError):  # not Linux, or a kernel without these figures: then only computing counts
            self._delays = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> float:
        return time.thread_time() + self._delay_s()

    def _delay_s(self) -> float:
        """Return how long the thread has waited for a core in all."""
        fields = os.pread(self._delays, 100, 0).split() if self._delays >= 0 else []
        return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0

    def __del__(self) -> None:
        if self._delays >= 0:
            os.close(self._delays)


def sharpen_sleep() -> None:
    """Let this thread's sleeps end on time: Linux may round them up by 50 microseconds."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
