"""Arrows from a gradient's hook over the wire to its gate.

In: what becomes of tensors.  Out: flow events, each of which holds to the span that is there at its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from undertow.trace.lanes import Lane

Draw = Callable[[str, int, float, int], None]  # phase, number, time, lane


class Arrows:
    """Of one rank.  `draw` makes the event."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._count = 0
        self._open: dict[str, tuple[int, float]] = {}  # of tensors whose arrow has begun its number and since when
        self._left: set[int] = set()  # arrows that have been on the wire
        self._slices: dict[str, int] = {}  # how many results each tensor gets
        self._missing: dict[str, int] = {}  # and how many are still to come

    def expect(self, tensors: Mapping[int, tuple[str, ...]]) -> None:
        """From now on these keys carry these tensors."""
        for names in tensors.values():
            for name in names:
                self._slices[name] = 0
        for names in tensors.values():
            for name in names:
                self._slices[name] += 1

    def begin(self, tensor: str, time_s: float) -> None:
        self._count += 1
        self._open[tensor] = self._count, time_s
        self._missing[tensor] = self._slices.get(tensor, 0)
        self._draw("s", self._count, time_s, Lane.COMPUTE)

    def leave(self, tensors: Iterable[str], queued_s: float, time_s: float, lane: int) -> None:
        """The first slice does.  Parts that others wait for may leave after this worker's own next hook."""
        for tensor in tensors:
            number, hooked_s = self._open.get(tensor, (0, 0.0))
            if number and number not in self._left and queued_s >= hooked_s:
                self._left.add(number)
                self._draw("t", number, time_s, lane)

    def come_back(self, tensors: Iterable[str], time_s: float, lane: int) -> None:
        """A result is here; the last one counts."""
        for tensor in tensors:
            self._missing[tensor] = missing = self._missing.get(tensor, 0) - 1
            if not missing and tensor in self._open:
                self._draw("t", self._open[tensor][0], time_s, lane)

    def end(self, tensors: Iterable[str], time_s: float) -> None:
        for tensor in tensors:
            opened = self._open.pop(tensor, None)
            if opened is not None:
                self._left.discard(opened[0])
                self._draw("f", opened[0], time_s, Lane.COMPUTE)
