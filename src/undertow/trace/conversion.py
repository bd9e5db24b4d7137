"""Converts a worker's times to microseconds of rank 0's clock, so that a trace never runs backwards.

In: the clocks' newest estimate, and times.  Out: the same times on rank 0's clock.
A better estimate holds for times after those that are written already: a time is converted to the same value whenever
it is asked for, and a later time to a later value.  Otherwise a step could end after the next one begins.
Where the new estimate lies behind the old one, the converted clock runs at half speed until both agree.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from undertow.trace.clocks import Clocks

# Estimates kept for times of the past.  There are at most four per second, so these cover a quarter of an hour.
KEPT = 4096


class _Segment(NamedTuple):
    """An estimate, and the time since when it holds; `least` is the line of half speed that it must not fall below."""

    since_s: float
    factor: float
    shift: float
    least_factor: float
    least_shift: float

    def convert(self, time_s: float) -> float:
        return max(self.factor * time_s + self.shift, self.least_factor * time_s + self.least_shift)


class Conversion:
    """Microseconds of rank 0's clock.  For one thread."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._newest_s = float("-inf")  # of the times that were converted
        self._segments: deque[_Segment] = deque(maxlen=KEPT)
        self._current = _Segment(self._newest_s, 1e6, 0.0, 1e6, 0.0)

    def refresh(self) -> None:
        """Take the clocks' newest estimate for all times after those converted so far."""
        factor, shift_s = self._clocks.line
        factor, shift = factor * 1e6, shift_s * 1e6
        if (factor, shift) == (self._current.factor, self._current.shift):
            return
        since_s = self._newest_s
        if since_s == float("-inf"):
            self._current = _Segment(since_s, factor, shift, factor, shift)
            return
        self._segments.append(self._current)
        half = factor / 2
        self._current = _Segment(since_s, factor, shift, half, self._current.convert(since_s) - half * since_s)

    def convert(self, time_s: float) -> float:
        if time_s > self._newest_s:
            self._newest_s = time_s
        elif time_s <= self._current.since_s:
            return self._find_past(time_s).convert(time_s)
        return self._current.convert(time_s)

    def _find_past(self, time_s: float) -> _Segment:
        found = self._current
        for found in reversed(self._segments):
            if time_s > found.since_s:
                break
        return found
