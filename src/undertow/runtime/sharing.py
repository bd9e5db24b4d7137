"""The turns of this process, one per device: made when a model is wrapped, closed at the end.

In: a group whose job shares, a device.  Out: its `Turn`, which tells the job's other workers where the job stands.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

from undertow.coordinator import messages
from undertow.crossover.client import Turn
from undertow.crossover.messages import VERSION, Hello
from undertow.crossover.place import find_socket
from undertow.crossover.turns import Place
from undertow.runtime.group import Group
from undertow.runtime.shape import COORDINATOR
from undertow.store.shard import Unexpected

_turns: dict[str, Turn] = {}


@dataclass(frozen=True, kw_only=True)
class SharedDevice:
    """What must be known of a device."""

    name: str
    growth_bytes: int  # memory that the job will still take of it
    free_bytes: int
    synchronise: Callable[[], None]


def find_turn(device: str) -> Turn | None:
    """The turn of this device, if this process takes one."""
    return _turns.get(device)


def open_turn(group: Group, device: SharedDevice) -> Turn | None:
    """The turn of this device; None if the job does not share.  Raises `ConfigError` if it is not admitted."""
    if group.sharing is None:
        return None
    turn = _turns.get(device.name)
    if turn is None:
        turn = _make_turn(group, device)
        turn.start()
        _turns[device.name] = turn
        group.share(lambda peer, message: _hear(turn, group, peer, message))
    group.waiters.share(turn)
    return turn


def close_all() -> None:
    for turn in _turns.values():
        turn.close()
    _turns.clear()


def abandon_all() -> None:
    """In a forked child."""
    for turn in _turns.values():
        turn.abandon()
    _turns.clear()


def _make_turn(group: Group, device: SharedDevice) -> Turn:
    sharing = group.sharing
    assert sharing is not None
    hello = Hello(
        version=VERSION,
        job=group.identity,
        name=sharing.name,
        rank=group.rank,
        world_size=group.size,
        pid=os.getpid(),
        device=device.name,
        weight=sharing.weight,
        is_urgent=sharing.is_urgent,
        growth_bytes=device.growth_bytes,
        free_bytes=device.free_bytes,
    )
    return Turn(
        hello,
        find_socket(sharing.socket),
        tell=lambda step, place: group.tell(messages.Standing(step, place.virtual_s, place.cost_s)),
        lift=lambda to_s: _lift(group, device.name, to_s),
        synchronise=device.synchronise,
        speaks=sharing.is_spokesman,
    )


def _hear(turn: Turn, group: Group, peer: int, message: messages.Standing | messages.Behind) -> None:
    if isinstance(message, messages.Behind) and group.rank == COORDINATOR:
        turn.raise_standing(message.to_s)
    elif isinstance(message, messages.Standing) and peer == COORDINATOR:
        if not math.isfinite(message.virtual_s + message.cost_s):
            raise Unexpected(f"rank {peer} says that the job has had {message.virtual_s} s")
        turn.hear_standing(message.step, Place(message.virtual_s, message.cost_s))


def _lift(group: Group, device: str, to_s: float) -> None:
    turn = find_turn(device)
    if group.rank != COORDINATOR:
        group.tell(messages.Behind(to_s))
    elif turn is not None:
        turn.raise_standing(to_s)
