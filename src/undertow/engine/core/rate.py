"""The measured rate of a worker's link: bytes received by peers per second while more bytes wait to be sent.

In: the number of bytes received so far, the time, and whether more bytes wait for credit.
Out: bytes per second, or None until something had to wait.
Time in which nothing waits tells nothing about the link and does not count.
"""

from __future__ import annotations

import statistics
from collections import deque

# In a shorter span, a burst that went into a buffer would look like a fast link.
SPAN_S = 0.02
# Enough to outvote a short disturbance, few enough to follow a link that changes.
KEPT = 9


class Rate:
    """Measured rate of one worker's link.  Not thread-safe, except for `bytes_per_s` and `seen`."""

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None
        self.seen = 0  # number of samples so far
        self._samples: deque[float] = deque(maxlen=KEPT)
        self._start: tuple[float, int] | None = None  # time and bytes; None while nothing waits

    def note(self, now_s: float, received_bytes: int, *, is_waiting: bool) -> None:
        if not is_waiting:
            self._start = None
        elif self._start is None:
            self._start = now_s, received_bytes
        elif now_s - self._start[0] >= SPAN_S and received_bytes > self._start[1]:
            since_s, before = self._start
            self._samples.append((received_bytes - before) / (now_s - since_s))
            self._start = now_s, received_bytes
            self.bytes_per_s = statistics.median(self._samples)
            self.seen += 1
