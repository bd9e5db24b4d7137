"""The lanes in which a trace shows the stages of a rank, from top to bottom, and the arrows between them.

In: hooks, transfers and updates of tensors.  Out: flow events from a gradient's hook over the wire to its gate; a
viewer attaches each one to the span at that time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

Draw = Callable[[str, int, float, int], None]  # phase, number, time, lane


class Lane:
    """Numbers of the lanes.  Not an enum: one is written with every event, and an enum takes three times as long."""

    STEPS: Final = 1
    COMPUTE: Final = 2
    TURN: Final = 3
    QUEUE: Final = 4
    SHARD: Final = 5
    ALLREDUCE: Final = 6


_NAMES = {
    Lane.STEPS: "steps",
    Lane.COMPUTE: "compute",
    Lane.TURN: "turn",
    Lane.QUEUE: "queue",
    Lane.SHARD: "shard",
    Lane.ALLREDUCE: "allreduce",
}
# Below them there are two lanes for every peer.
_TO, _FROM = 1_000, 100_000


def lane_to(peer: int) -> int:
    return _TO + peer


def lane_from(peer: int) -> int:
    return _FROM + peer


def describe_lane(lane: int) -> str:
    if lane >= _FROM:
        return f"from rank {lane - _FROM}"
    return f"to rank {lane - _TO}" if lane >= _TO else _NAMES[lane]


class Arrows:
    """The arrows of one rank; `draw` adds a flow event."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._count = 0
        self._open: dict[str, tuple[int, float]] = {}  # number and start of each tensor's arrow
        self._left: set[int] = set()  # arrows that have reached the wire
        self._slices: dict[str, int] = {}  # results per tensor
        self._missing: dict[str, int] = {}  # results still to come

    def expect(self, tensors: Mapping[int, tuple[str, ...]]) -> None:
        """Set the tensors that each key carries."""
        self._slices.update(Counter(name for names in tensors.values() for name in names))

    def begin(self, tensor: str, time_s: float) -> None:
        self._count += 1
        self._open[tensor] = self._count, time_s
        self._missing[tensor] = self._slices.get(tensor, 0)
        self._draw("s", self._count, time_s, Lane.COMPUTE)

    def leave(self, tensors: Iterable[str], queued_s: float, time_s: float, lane: int) -> None:
        """Continue the arrow at the first slice that is sent.  Those of other shards may follow after the next hook."""
        for tensor in tensors:
            number, hooked_s = self._open.get(tensor, (0, 0.0))
            if number and number not in self._left and queued_s >= hooked_s:
                self._left.add(number)
                self._draw("t", number, time_s, lane)

    def come_back(self, tensors: Iterable[str], time_s: float, lane: int) -> None:
        """Continue the arrow at the last result of each tensor."""
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
