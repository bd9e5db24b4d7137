"""Turn clients of this process, one per shared device, made when a model is wrapped and closed at the end.

In: a group whose job shares, a device.  Out: its `TurnClient`, which relays messages to the job's other workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from undertow.crossover.client import TurnClient
from undertow.crossover.messages import VERSION, Hello, Lift, Relayed
from undertow.crossover.socket_path import find_socket
from undertow.engine.core.shape import COORDINATOR
from undertow.engine.interface import Group

_turns: dict[str, TurnClient] = {}


def find_turn(device: str) -> TurnClient | None:
    """Return the turn client of this device, if this process has one."""
    return _turns.get(device)


def open_turn(
    group: Group, device: str, *, growth_bytes: int, free_bytes: int, synchronise: Callable[[], None]
) -> TurnClient | None:
    """Take turns on this device; None if the job does not share.  Raises `ConfigError` if it is not admitted.

    `growth_bytes` is the device memory that the job has still to allocate.
    """
    sharing = group.shape.sharing
    if sharing is None:
        return None
    turn = _turns.get(device)
    if turn is None:
        hello = Hello(
            version=VERSION,
            job=group.shape.identity,
            name=sharing.name,
            rank=group.rank,
            world_size=group.size,
            pid=os.getpid(),
            device=device,
            weight=sharing.weight,
            is_urgent=sharing.is_urgent,
            growth_bytes=growth_bytes,
            free_bytes=free_bytes,
        )
        turn = TurnClient(
            hello,
            find_socket(sharing.socket),
            relay=lambda message: _relay(group, device, message),
            synchronise=synchronise,
            is_verbose=sharing.is_verbose,
        )
        turn.start()
        _turns[device] = turn
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
