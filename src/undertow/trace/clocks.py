"""One worker's clock in terms of rank 0's.

In: comparisons, each a difference and the length of the round trip that showed it.  Out: times, converted.
A comparison is wrong by half of its round trip at most; most met something in their way, and tell little.  The older
one is, the further the clocks may have drifted apart since.  So the one counts whose round trip and age leave the least
doubt.  Two good ones that are far apart tell the drift, and how far that can be trusted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

KEPT = 256
# What clocks may differ by as long as nobody knows better: the quartz of a machine without a time service.
UNSEEN_DRIFT = 0.00005


class _Comparison(NamedTuple):
    time_s: float
    offset_s: float
    round_trip_s: float


class _Drift(NamedTuple):
    """Seconds per second, and by how much that may be wrong."""

    rate: float
    doubt: float


class Clocks:
    def __init__(self) -> None:
        self._comparisons: deque[_Comparison] = deque(maxlen=KEPT)
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
        """A factor, and what to add then: for whoever converts many times."""
        return 1.0 + self._drift.rate, self._best.offset_s - self._drift.rate * self._best.time_s

    def convert(self, time_s: float) -> float:
        """What rank 0's clock shows then."""
        factor, shift_s = self.line
        return factor * time_s + shift_s


def _find_drift(comparisons: list[_Comparison]) -> _Drift:
    """By the fastest of the older half and the fastest of the newer."""
    middle = len(comparisons) // 2
    if not middle:
        return _Drift(0.0, UNSEEN_DRIFT)
    old, new = _find_fastest(comparisons[:middle]), _find_fastest(comparisons[middle:])
    span_s = max(1e-9, new.time_s - old.time_s)
    doubt = (old.round_trip_s + new.round_trip_s) / 2 / span_s
    return _Drift((new.offset_s - old.offset_s) / span_s, doubt) if doubt < UNSEEN_DRIFT else _Drift(0.0, UNSEEN_DRIFT)


def _find_fastest(comparisons: Iterable[_Comparison]) -> _Comparison:
    return min(comparisons, key=lambda one: one.round_trip_s)
