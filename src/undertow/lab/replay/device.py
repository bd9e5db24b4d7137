"""The device of a replayed model: an accelerator that is only waited for.

In: "this operation takes so many seconds".  Out: the calling thread returns that much later.
It sleeps, so the CPU stays free for the network.
A real accelerator works off a queue that the training thread fills ahead of time, so it
loses nothing when that thread computes.  The same here: CPU time that the thread itself
used since the last operation, and the lateness of its waking up, are taken off the next
sleep, as far as a queue reaches ahead.  Time that it spent waiting, for the network above all, never is: that is what
gets measured.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

PR_SET_TIMERSLACK = 29

# How far a training thread runs ahead of its device; what it is late beyond that, the device has stood still for.
QUEUE_S = 0.05

Clock = Callable[[], float]


class Device:
    """One per worker; used by its training thread only."""

    def __init__(
        self,
        *,
        rank: int = 0,
        clock: Clock = time.perf_counter,
        thread_clock: Clock = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._thread_clock, self._sleep = clock, thread_clock, sleep
        # What fresh gradients hold: something else on each worker, so that one who does not average is found out.
        # Small enough that training for hours moves no parameter far.
        self.gradient = 1e-4 * (1 + rank)
        self._end_s = clock()  # when the last operation returned
        self._late_s = 0.0  # how long ago the last operation should have ended; never negative
        self._used_s = thread_clock()  # the thread's CPU time at the end of the last operation

    def compute(self, seconds: float) -> None:
        """Return when an operation that takes so long is done."""
        now_s = self._clock()
        worked_s = self._thread_clock() - self._used_s
        # Whoever waits catches up with the lateness: what was waited for would not have come earlier.
        waited_s = max(0.0, now_s - self._end_s - worked_s)
        hidden_s = min(QUEUE_S, max(0.0, self._late_s - waited_s) + worked_s)
        end_s = now_s - hidden_s + seconds
        if end_s > now_s:
            self._sleep(end_s - now_s)
        self._end_s, self._used_s = self._clock(), self._thread_clock()
        self._late_s = max(0.0, self._end_s - end_s)


def sharpen_sleep() -> None:
    """Let this thread's sleeps end on time: Linux may round them up by 50 microseconds."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
