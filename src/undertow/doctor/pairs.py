"""One pair after the other: who can reach whom, and how fast.

In: a circle of hosts with open doors.  Out: a `Survey`, the same on all of them.
First all try all doors at once, which disturbs nobody.  Then, in an order that follows from that, one pair at a time
measures, and the others wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from undertow.doctor.bulk import STALL_S
from undertow.doctor.cards import Circle, decode
from undertow.doctor.measuring import Measured, measure, try_door
from undertow.doctor.patience import run_all, run_one
from undertow.doctor.reach import CONNECT_S, Reach
from undertow.errors import MismatchError, UndertowError

if TYPE_CHECKING:
    from undertow.watch import Watch

# A busy host may be late by this much.
SLACK_S = 20.0


class Survey(msgspec.Struct, frozen=True):
    """Of the hosts in a circle, by their places."""

    reach: list[list[Reach]]  # [from][to]
    measured: list[Measured] = []
    error: str = ""  # why it is not complete


def survey(circle: Circle, *, duration_s: float, watch: Watch) -> Survey:
    size = len(circle.cards)
    reach = [[Reach.NOT_TRIED] * size for _ in range(size)]
    own: list[Measured] = []
    try:
        rows = _exchange(circle, "reach", msgspec.msgpack.encode(_try_doors(circle)), CONNECT_S + SLACK_S)
        reach = [_read_row(row, size) for row in rows]
        turns = list_turns(reach)
        watch.expect(len(turns))
        for number, (dialer, listener) in enumerate(turns):
            _exchange(circle, f"turn {number}", b"", 2 * (duration_s + 3 * STALL_S) + SLACK_S)
            watch.lap(min(number, 1))  # that all have come for this one ends the one before
            names = f"{circle.cards[dialer].name} and {circle.cards[listener].name}"
            watch.say(f"measuring {len(turns)} pair{'s' if len(turns) > 1 else ''} of hosts: {names}")
            if dialer == circle.rank:
                own.append(_measure(circle, listener, duration_s))
        results = _exchange(circle, "results", msgspec.msgpack.encode(own), 2 * (duration_s + 3 * STALL_S) + SLACK_S)
        return Survey(reach, [one for result in results for one in _read_results(result, size)])
    except UndertowError as error:
        # Whoever waits at a meeting is told of ranks, and of an option that the doctor does not have.
        text = str(error).partition(";")[0]
        return Survey(reach, own, f"{text} (ranks count the hosts from 0)")


def _read_row(payload: bytes, size: int) -> list[Reach]:
    row = decode(payload, list[Reach])
    if len(row) != size:
        raise MismatchError(f"a host has tried {len(row)} hosts of {size}: install the same undertow on all")
    return row


def _read_results(payload: bytes, size: int) -> list[Measured]:
    results = decode(payload, list[Measured])
    for one in results:
        if max(one.dialer, one.listener) >= size:
            raise MismatchError(f"a host has measured hosts {one.dialer} and {one.listener} of {size}")
    return results


def list_turns(reach: Sequence[Sequence[Reach]]) -> list[tuple[int, int]]:
    """Who dials whom, pair by pair: the later host the earlier one, as workers do, if it can."""
    turns = []
    for high in range(len(reach)):
        for low in range(high):
            if reach[high][low] is Reach.REACHED:
                turns.append((high, low))
            elif reach[low][high] is Reach.REACHED:
                turns.append((low, high))
    return turns


def _try_doors(circle: Circle) -> list[Reach]:
    row = [Reach.REACHED if place == circle.rank else Reach.NOT_TRIED for place in range(len(circle.cards))]
    others = [place for place, card in enumerate(circle.cards) if place != circle.rank and card.door]
    for errand in run_all(lambda place: try_door(circle.cards[place].door, circle.token), others):
        row[errand.number] = errand.result()
    return row


def _measure(circle: Circle, listener: int, duration_s: float) -> Measured:
    door = circle.cards[listener].door
    return run_one(lambda: measure((circle.rank, listener), door, circle.token, duration_s=duration_s))


def _exchange(circle: Circle, what: str, payload: bytes, timeout_s: float) -> list[bytes]:
    return run_one(lambda: circle.exchange(f"doctor: {what}", payload, timeout_s))
