"""One worker's clock in terms of rank 0's.

In: comparisons, each a difference and the length of the round trip that showed it.  Out: times, converted.
A comparison is wrong by half of its round trip at most.  Fast ones are believed; the others met something in their way
and count for nothing.  Between two clocks that were compared for a while there is a drift, which is carried on.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

# A round trip within this of the fastest is believed.
SLACK_FACTOR, SLACK_S = 1.5, 0.00002
KEPT = 256
# Shorter, the error of two comparisons looks like a drift.
LEAST_SPAN_S = 20.0
# Clocks of machines that work differ by less.
MOST_DRIFT = 0.0003


class _Comparison(NamedTuple):
    time_s: float
    offset_s: float
    round_trip_s: float


class Clocks:
    def __init__(self) -> None:
        self._comparisons: deque[_Comparison] = deque(maxlen=KEPT)
        self._fastest: _Comparison | None = None
        self._base_s, self._offset_s, self._drift = 0.0, 0.0, 0.0

    @property
    def is_compared(self) -> bool:
        return self._fastest is not None

    def compare(self, time_s: float, offset_s: float, round_trip_s: float) -> None:
        comparison = _Comparison(time_s, offset_s, round_trip_s)
        if self._fastest is None or round_trip_s <= self._fastest.round_trip_s:
            self._fastest = comparison
        self._comparisons.append(comparison)
        self._fit([one for one in self._comparisons if self._is_believed(one)])

    def convert(self, time_s: float) -> float:
        """What rank 0's clock shows then."""
        return time_s + self._offset_s + self._drift * (time_s - self._base_s)

    def _is_believed(self, comparison: _Comparison) -> bool:
        assert self._fastest is not None
        return comparison.round_trip_s <= SLACK_FACTOR * self._fastest.round_trip_s + SLACK_S

    def _fit(self, believed: list[_Comparison]) -> None:
        """A straight line through what is believed, or, of a short time, the fastest of it."""
        if not believed:
            return  # the fastest was long ago: what is known of the drift is all there is
        span_s = believed[-1].time_s - believed[0].time_s
        if span_s < LEAST_SPAN_S:
            best = min(believed, key=lambda one: one.round_trip_s)
            self._base_s, self._offset_s = best.time_s, best.offset_s
            return
        count = len(believed)
        mean_s = sum(one.time_s for one in believed) / count
        mean_offset_s = sum(one.offset_s for one in believed) / count
        spread = sum((one.time_s - mean_s) ** 2 for one in believed)
        slope = sum((one.time_s - mean_s) * (one.offset_s - mean_offset_s) for one in believed) / spread
        self._base_s, self._offset_s = mean_s, mean_offset_s
        self._drift = max(-MOST_DRIFT, min(MOST_DRIFT, slope))
