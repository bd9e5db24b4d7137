"""Turn clients of this process, one per shared device, made when a model is wrapped and closed at the end.

In: a group whose job shares, a device.  Out: its `TurnClient`, which relays messages to the job's other workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from undertow.crossover.client import TurnClient
from undertow.crossover.messages import VERSION, Hello, Lift, Relayed
from undertow.crossover.socket_path import find_socket
from undertow.engine.core.shape import COORDINATOR
from undertow.engine.interface import Group
from undertow.settings import Sharing

_turns: dict[str, TurnClient] = {}


@dataclass(frozen=True, kw_only=True)
class SharedDevice:
    """Device that jobs share."""

    name: str
    growth_bytes: int  # device memory that the job has still to allocate
    free_bytes: int
    synchronise: Callable[[], None]


def find_turn(device: str) -> TurnClient | None:
    """Return the turn client of this device, if this process has one."""
    return _turns.get(device)


def open_turn(group: Group, device: SharedDevice) -> TurnClient | None:
    """Take turns on this device; None if the job does not share.  Raises `ConfigError` if it is not admitted."""
    sharing = group.shape.sharing
    if sharing is None:
        return None
    turn = _turns.get(device.name)
    if turn is None:
        turn = _make_turn(group, sharing, device)
        turn.start()
        _turns[device.name] = turn
        group.turns.on_message(lambda peer, message: _handle_relayed(turn, group, peer, message))
    group.turns.free_while_waiting(turn)
    return turn


def close_all() -> None:
    for turn in _turns.values():
        turn.close()
    _turns.clear()


def abandon_all() -> None:
    """Forget all turns in a forked child."""
    for turn in _turns.values():
        turn.abandon()
    _turns.clear()


def _make_turn(group: Group, sharing: Sharing, device: SharedDevice) -> TurnClient:
    hello = Hello(
        version=VERSION,
        job=group.shape.identity,
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
    return TurnClient(
        hello,
        find_socket(sharing.socket),
        relay=lambda message: _relay(group, device.name, message),
        synchronise=device.synchronise,
        is_verbose=sharing.is_verbose,
    )


def _handle_relayed(turn: TurnClient, group: Group, peer: int, message: Relayed) -> None:
    if (group.rank if isinstance(message, Lift) else peer) == COORDINATOR:
        turn.handle_relayed(message)


def _relay(group: Group, device: str, message: Relayed) -> None:
    """Pass a count on to all other workers, or a lift to the first worker."""
    turn = find_turn(device)
    if group.rank != COORDINATOR or not isinstance(message, Lift):
        group.turns.send(message)
    elif turn is not None:
        turn.handle_relayed(message)
