"""The table of open rendezvous, without sockets: decides on the reply to each participant.

In: participants that join or leave, and the time.  Out: replies, each to one participant.
A rendezvous is complete when all its ranks have joined; it is then forgotten, so its
name can be used again.  The first deadline that passes ends the rendezvous for all
participants, because the one that gives up will not come back.
Payloads are never read.  `now_s` is the time by the caller's clock.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from undertow.bounds import TIMEOUT_S
from undertow.decoding import Rank, Seconds
from undertow.errors import name_ranks

MAX_PAYLOAD_BYTES = 1 << 20
MAX_SIZE = 1 << 16
# Only rank 0 joins this rendezvous, when it is connected to all workers.
WORKERS_MET = "workers met"


class Join(msgspec.Struct, frozen=True, array_like=True):
    """Request to join a rendezvous: the participant's rank, and its payload for the others."""

    name: Annotated[str, msgspec.Meta(max_length=256)]
    rank: Rank
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_SIZE)]
    payload: Annotated[bytes, msgspec.Meta(max_length=MAX_PAYLOAD_BYTES)]
    timeout_s: Seconds  # the caller's timeout, for messages
    left_s: Seconds  # the time left after connecting


class JoinFailure(enum.Enum):
    """Reason why a participant does not get the others' payloads."""

    ABSENT = "absent"  # others did not join in time
    TAKEN = "taken"  # the rank belongs to another participant, or is impossible
    DISAGREE = "disagree"  # the others expect a different number of ranks


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """Answer to a participant: payloads in rank order, or a failure with the ranks that it concerns."""

    payloads: list[bytes]
    failure: JoinFailure | None = None
    text: str = ""  # for ABSENT, a predicate of which the ranks are the subject; else a sentence
    ranks: list[Rank] = []


Replies = list[tuple[Hashable, Reply]]


@dataclass
class _Participant:
    """Participant of a rendezvous."""

    who: Hashable
    payload: bytes
    timeout_s: float
    deadline_s: float


@dataclass
class _Rendezvous:
    """Participants that wait for the others."""

    size: int
    participants: dict[int, _Participant] = field(
        default_factory=dict
    )  # by rank; between two calls never empty or full


class RendezvousTable:
    """Open rendezvous of one server, by name.  Not thread-safe: one loop owns it."""

    def __init__(self) -> None:
        self._open: dict[str, _Rendezvous] = {}
        self._joined: dict[Hashable, tuple[str, int]] = {}  # participant -> name of its rendezvous, rank

    def join(self, who: Hashable, request: Join, now_s: float) -> Replies:
        """Add `who`; return replies to all participants if that completes the rendezvous."""
        rendezvous = self._open.get(request.name) or _Rendezvous(request.size)
        refusal = _find_failure(rendezvous, request)
        if refusal:
            return [(who, refusal)]
        self._open[request.name] = rendezvous
        left_s = min(TIMEOUT_S.most, request.left_s)  # more, or NaN, would end the thread that waits for it
        rendezvous.participants[request.rank] = _Participant(who, request.payload, request.timeout_s, now_s + left_s)
        self._joined[who] = (request.name, request.rank)
        if len(rendezvous.participants) < rendezvous.size:
            return []
        payloads = [rendezvous.participants[rank].payload for rank in range(rendezvous.size)]
        return self._end(request.name, Reply(payloads))

    def leave(self, who: Hashable) -> None:
        """Remove a participant whose connection has closed."""
        if who not in self._joined:
            return
        name, rank = self._joined.pop(who)
        del self._open[name].participants[rank]
        if not self._open[name].participants:
            del self._open[name]

    def expire(self, now_s: float) -> Replies:
        """End every rendezvous in which a participant has waited for too long."""
        replies: Replies = []
        for name in list(self._open):
            late = [each for each in self._open[name].participants.values() if each.deadline_s <= now_s]
            if late:
                timeout_s = min(each.timeout_s for each in late)
                replies += self._end(name, _describe_absence(self._open[name], timeout_s))
        return replies

    def next_deadline_s(self) -> float | None:
        """Return the time of the next deadline; None if no participant waits."""
        return min((each.deadline_s for one in self._open.values() for each in one.participants.values()), default=None)

    def _end(self, name: str, reply: Reply) -> Replies:
        participants = self._open.pop(name).participants.values()
        for each in participants:
            del self._joined[each.who]
        return [(each.who, reply) for each in participants]


def _find_failure(rendezvous: _Rendezvous, request: Join) -> Reply | None:
    if request.rank >= request.size:
        text = f"rank {request.rank} is outside of 0 to {request.size - 1}: check RANK and WORLD_SIZE"
        return Reply([], JoinFailure.TAKEN, text, [request.rank])
    if request.size != rendezvous.size:
        here = sorted(rendezvous.participants)
        text = (
            f"rank {request.rank} expects {request.size} ranks at rendezvous {request.name!r}, but {name_ranks(here)}, "
            f"which came earlier, expected {rendezvous.size}: start all with the same number"
        )
        return Reply([], JoinFailure.DISAGREE, text, [request.rank, *here])
    if request.rank in rendezvous.participants:
        text = f"rank {request.rank} of {request.size} is taken: two processes claim it at rendezvous {request.name!r}"
        return Reply([], JoinFailure.TAKEN, f"{text}; give each its own rank (RANK or --node-rank)", [request.rank])
    return None


def _describe_absence(rendezvous: _Rendezvous, timeout_s: float) -> Reply:
    present = name_ranks(sorted(rendezvous.participants))
    absent = [rank for rank in range(rendezvous.size) if rank not in rendezvous.participants]
    text = (
        f"of {rendezvous.size} did not arrive within {timeout_s:g} s ({present} did); "
        "look at their output, or give them more time with --start-timeout"
    )
    return Reply([], JoinFailure.ABSENT, text, absent)
