"""The device of a replayed model: an accelerator that is only waited for.

In: "this operation takes so many seconds".  Out: the calling thread returns that much later.
It sleeps, so the CPU stays free for the network.
A real accelerator works off a queue that the training thread fills ahead of time, so it
loses nothing when that thread computes.  The same here: what the thread itself computed
since the last operation, how long it stood in line for one of the cores that all emulated
hosts share, and the lateness of its waking up are taken off the next sleep, as far as a
queue reaches ahead.  Time that it spent waiting, for the network above all, never is: that
is what gets measured.
Workers of several jobs may share a device: then an operation also waits until it is free.
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

# How far a training thread runs ahead of its device; what it is late beyond that, the device has stood still for.
QUEUE_S = 0.05

Clock = Callable[[], float]


class Occupancy(Protocol):
    """A device that is not this worker's alone."""

    def occupy(self, begin_s: float, seconds: float) -> float:
        """Take it for so long, from then on or from when it is free; returns the end."""


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
        # What fresh gradients hold: something else on each worker, so that one who does not average is found out.
        # Small enough that training for hours moves no parameter far.
        self.gradient = 1e-4 * (1 + rank)
        self._end_s = clock()  # when the last operation returned
        self._late_s = 0.0  # how long ago the last operation should have ended; never negative
        self._used_s = self._thread_clock()  # the thread's clock at the end of the last operation

    def compute(self, seconds: float) -> None:
        """Return when an operation that takes so long is done."""
        now_s = self._clock()
        worked_s = self._thread_clock() - self._used_s
        # A thread that waits catches up with the lateness: what was waited for would not have come earlier.
        waited_s = max(0.0, now_s - self._end_s - worked_s)
        hidden_s = min(QUEUE_S, max(0.0, self._late_s - waited_s) + worked_s)
        end_s = now_s - hidden_s + seconds
        if self._occupancy is not None and seconds > 0:
            # What is hidden was in the queue already, so it may begin in the past; but not before the device was free.
            end_s = self._occupancy.occupy(now_s - hidden_s, seconds)
            now_s = self._clock()
        if end_s > now_s:
            self._sleep(end_s - now_s)
        self._end_s, self._used_s = self._clock(), self._thread_clock()
        self._late_s = max(0.0, self._end_s - end_s)


_FREE_AT = struct.Struct("=d")


def place_device(folder: str | os.PathLike[str], host: int) -> Path:
    """Return the file of this host's device."""
    return Path(folder) / f"device{host}"


def make_devices(folder: Path, hosts: int) -> None:
    """Make the devices of these hosts; all are free."""
    for host in range(hosts):
        place_device(folder, host).write_bytes(_FREE_AT.pack(0.0))


class SharedOccupancy:
    """Device that workers of several jobs share, one per emulated host, as seen by one worker; used by one thread.

    Operations are served one at a time in the order in which they come, as a device does that is handed from process
    to process between operations.  What all processes see is one number in a file: when the device is free, on the
    machine's monotonic clock.
    """

    def __init__(self, path: Path) -> None:
        # A file of its own in every worker: who has opened it is who holds its lock.
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._page = mmap.mmap(self._file, _FREE_AT.size)

    def occupy(self, begin_s: float, seconds: float) -> float:
        """Return at once when the operation ends; the caller sleeps until then, without the lock."""
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
    """Seconds that the calling thread has computed, or would have with a core of its own."""

    def __init__(self) -> None:
        self._delays = -1
        with suppress(OSError):  # not Linux, or a kernel without these figures: then computing alone counts
            self._delays = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> float:
        return time.thread_time() + self._delay_s()

    def _delay_s(self) -> float:
        """Return how long the thread has waited for a core so far."""
        fields = os.pread(self._delays, 100, 0).split() if self._delays >= 0 else []
        return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0

    def __del__(self) -> None:
        if self._delays >= 0:
            os.close(self._delays)


def sharpen_sleep() -> None:
    """Let this thread's sleeps end on time: Linux may round them up by 50 microseconds."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
