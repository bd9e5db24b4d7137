"""The lanes of a rank: which stage is shown where, from top to bottom."""

from __future__ import annotations

from typing import Final


class Lane:
    """Plain numbers: they are written with every event, and an enum takes three times as long to write."""

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
# Behind them two for every peer.
_TO, _FROM = 1_000, 100_000


def lane_to(peer: int) -> int:
    return _TO + peer


def lane_from(peer: int) -> int:
    return _FROM + peer


def describe_lane(lane: int) -> str:
    if lane >= _FROM:
        return f"from rank {lane - _FROM}"
    return f"to rank {lane - _TO}" if lane >= _TO else _NAMES[lane]
