"""Converts a worker's times to microseconds of rank 0's clock, so that a trace never runs backwards.

In: comparisons of the clocks, each an offset and the duration of its round trip; times.  Out: the same times on rank
0's clock.
A comparison is wrong by at most half of its round trip, and most round trips are delayed.  The clocks also drift apart
with its age.  The best comparison has the least

    doubt = round trip / 2 + uncertainty of the drift * age

Two fast comparisons that are far apart give the drift and its uncertainty.
A better estimate applies only to times after those converted so far: a time is always converted to the same value, and
a later time to a later value.  Otherwise a step could end after the next one begins.  Where the new estimate is behind
the old one, the converted clock runs at half speed until they agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

KEPT_COMPARISONS = 256
# Assumed drift until one is measured: that of a quartz clock without a time service.
UNSEEN_DRIFT = 0.00005
# Estimates kept for past times.  There are at most four per second, so these cover a quarter of an hour.
KEPT_ESTIMATES = 4096


class _Comparison(NamedTuple):
    """Offset between the clocks at one time."""

    time_s: float
    offset_s: float
    round_trip_s: float


class _Drift(NamedTuple):
    """Drift in seconds per second, and its largest possible error."""

    rate: float
    doubt: float


class Clocks:
    """The comparisons of one worker, and the best estimate from them."""

    def __init__(self) -> None:
        self._comparisons: deque[_Comparison] = deque(maxlen=KEPT_COMPARISONS)
        self._best = _Comparison(0.0, 0.0, 0.0)
        self._drift = _Drift(0.0, UNSEEN_DRIFT)

    @property
    def is_compared(self) -> bool:
        return bool(self._comparisons)

    def compare(self, time_s: float, offset_s: float, round_trip_s: float) -> None:
        self._comparisons.append(_Comparison(time_s, offset_s, round_trip_s))
        self._drift = _find_drift(list(self._comparisons))
        doubt = self._drift.doubt
        self._best = min(self._comparisons, key=lambda one: one.round_trip_s / 2 + doubt * (time_s - one.time_s))

    @property
    def line(self) -> tuple[float, float]:
        """Return the factor and the shift that convert a time to rank 0's clock."""
        return 1.0 + self._drift.rate, self._best.offset_s - self._drift.rate * self._best.time_s


def _find_drift(comparisons: list[_Comparison]) -> _Drift:
    """Return the drift between the fastest comparisons of the older and of the newer half."""
    middle = len(comparisons) // 2
    if not middle:
        return _Drift(0.0, UNSEEN_DRIFT)
    old, new = _find_fastest(comparisons[:middle]), _find_fastest(comparisons[middle:])
    span_s = max(1e-9, new.time_s - old.time_s)
    doubt = (old.round_trip_s + new.round_trip_s) / 2 / span_s
    return _Drift((new.offset_s - old.offset_s) / span_s, doubt) if doubt < UNSEEN_DRIFT else _Drift(0.0, UNSEEN_DRIFT)


def _find_fastest(comparisons: Iterable[_Comparison]) -> _Comparison:
    return min(comparisons, key=lambda one: one.round_trip_s)


class _Segment(NamedTuple):
    """An estimate that applies after `since_s`, but never below the line of half speed, `least`."""

    since_s: float
    factor: float
    shift: float
    least_factor: float
    least_shift: float

    def convert(self, time_s: float) -> float:
        return max(self.factor * time_s + self.shift, self.least_factor * time_s + self.least_shift)


class Conversion:
    """Converter of times to microseconds of rank 0's clock.  Used by one thread."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._newest_s = float("-inf")  # latest time converted so far
        self._segments: deque[_Segment] = deque(maxlen=KEPT_ESTIMATES)
        self._current = _Segment(self._newest_s, 1e6, 0.0, 1e6, 0.0)

    def refresh(self) -> None:
        """Use the clocks' newest estimate for all times after those converted so far."""
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
