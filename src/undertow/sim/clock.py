"""Virtual time.

In: calls that are due at some time.  Out: the same calls, the earliest first; ties in the order in which they came.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = 0

    def at(self, time_s: float, call: Callable[..., object], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._due, (time_s, self._sequence, call, arguments))

    def run(self) -> None:
        """Until nothing is due any more."""
        due, take = self._due, heapq.heappop
        while due:
            self.now_s, _, call, arguments = take(due)
            call(*arguments)

    def stop(self) -> None:
        """Whatever is due does not happen, nor what this call leads to."""
        self._due.clear()
        self._due = []
