"""The lanes of a rank: which stage is shown where, from top to bottom."""

from __future__ import annotations

import enum


class Lane(enum.IntEnum):
    STEPS = 1
    COMPUTE = 2
    TURN = 3
    QUEUE = 4
    SHARD = 5
    ALLREDUCE = 6


# Behind them two for every peer.
_TO, _FROM = 1_000, 100_000


def lane_to(peer: int) -> int:
    return _TO + peer


def lane_from(peer: int) -> int:
    return _FROM + peer


def describe_lane(lane: int) -> str:
    if lane >= _FROM:
        return f"from rank {lane - _FROM}"
    if lane >= _TO:
        return f"to rank {lane - _TO}"
    return Lane(lane).name.lower()
