"""The table of open rendezvous, without sockets: decides what each participant is told.

In: participants that join or leave, and the time.  Out: replies, each to one participant.
A rendezvous is complete when all its ranks are there; it is then forgotten, so a
name can be used again.  The first deadline that passes ends the rendezvous for all
who are present, because the participant that gives up will not come back.
Never looks at a payload.  `now_s` is always the caller's clock.
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
# To this rendezvous rank 0 comes alone, when it is connected to all workers.
WORKERS_MET = "workers met"


class Join(msgspec.Struct, frozen=True, array_like=True):
    """Request of a participant: its rank in a rendezvous, and its payload for the others."""

    name: Annotated[str, msgspec.Meta(max_length=256)]
    rank: Rank
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_SIZE)]
    payload: Annotated[bytes, msgspec.Meta(max_length=MAX_PAYLOAD_BYTES)]
    timeout_s: Seconds  # as the caller gave it, for messages
    left_s: Seconds  # what remains of it after connecting


class Complaint(enum.Enum):
    """Reason why a participant leaves without the others' payloads."""

    ABSENT = "absent"  # others did not come in time
    TAKEN = "taken"  # the rank is another participant's, or impossible
    DISAGREE = "disagree"  # the others expect another number of ranks


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """Answer to a participant: payloads in rank order, or a complaint with the ranks that it is about."""

    payloads: list[bytes]
    complaint: Complaint | None = None
    text: str = ""  # in a complaint about absence: what happened to the ranks
    ranks: list[Rank] = []


Replies = list[tuple[Hashable, Reply]]


@dataclass
class _Seat:
    """Participant of a rendezvous."""

    who: Hashable
    payload: bytes
    timeout_s: float
    deadline_s: float


@dataclass
class _Rendezvous:
    """Participants that wait for the others."""

    size: int
    seats: dict[int, _Seat] = field(default_factory=dict)  # by rank; never empty, never full between two calls


class RendezvousTable:
    """Open rendezvous of one server, by name.  Not thread-safe: one loop owns it."""

    def __init__(self) -> None:
        self._open: dict[str, _Rendezvous] = {}
        self._places: dict[Hashable, tuple[str, int]] = {}  # exactly the occupied seats

    def join(self, who: Hashable, request: Join, now_s: float) -> Replies:
        """Seat `who`; return answers to all participants if that completes the rendezvous."""
        rendezvous = self._open.get(request.name) or _Rendezvous(request.size)
        refusal = _find_fault(rendezvous, request)
        if refusal:
            return [(who, refusal)]
        self._open[request.name] = rendezvous
        left_s = min(TIMEOUT_S.most, request.left_s)  # more, or NaN, would end the thread that waits for it
        rendezvous.seats[request.rank] = _Seat(who, request.payload, request.timeout_s, now_s + left_s)
        self._places[who] = (request.name, request.rank)
        if len(rendezvous.seats) < rendezvous.size:
            return []
        payloads = [rendezvous.seats[rank].payload for rank in range(rendezvous.size)]
        return self._dissolve(request.name, Reply(payloads))

    def leave(self, who: Hashable) -> None:
        """Free the seat of a participant whose connection is gone."""
        if who not in self._places:
            return
        name, rank = self._places.pop(who)
        del self._open[name].seats[rank]
        if not self._open[name].seats:
            del self._open[name]

    def expire(self, now_s: float) -> Replies:
        """End every rendezvous in which a participant has waited for too long."""
        replies: Replies = []
        for name in list(self._open):
            late = [seat for seat in self._open[name].seats.values() if seat.deadline_s <= now_s]
            if late:
                timeout_s = min(seat.timeout_s for seat in late)
                replies += self._dissolve(name, _complain_of_absence(self._open[name], timeout_s))
        return replies

    def next_deadline_s(self) -> float | None:
        """Return when `expire` has something to do; None while no participant waits."""
        deadlines = [seat.deadline_s for rendezvous in self._open.values() for seat in rendezvous.seats.values()]
        return min(deadlines, default=None)

    def _dissolve(self, name: str, reply: Reply) -> Replies:
        seats = self._open.pop(name).seats.values()
        for seat in seats:
            del self._places[seat.who]
        return [(seat.who, reply) for seat in seats]


def _find_fault(rendezvous: _Rendezvous, request: Join) -> Reply | None:
    if request.rank >= request.size:
        text = f"rank {request.rank} is outside of 0 to {request.size - 1}: check RANK and WORLD_SIZE"
        return Reply([], Complaint.TAKEN, text, [request.rank])
    if request.size != rendezvous.size:
        here = sorted(rendezvous.seats)
        text = (
            f"rank {request.rank} expects {request.size} ranks at rendezvous {request.name!r}, but {name_ranks(here)} "
            f"before it expected {rendezvous.size}: start all with the same number"
        )
        return Reply([], Complaint.DISAGREE, text, [request.rank, *here])
    if request.rank in rendezvous.seats:
        text = f"rank {request.rank} of {request.size} is taken: two processes claim it at rendezvous {request.name!r}"
        return Reply([], Complaint.TAKEN, f"{text}; give each its own rank (RANK or --node-rank)", [request.rank])
    return None


def _complain_of_absence(rendezvous: _Rendezvous, timeout_s: float) -> Reply:
    absent = [rank for rank in range(rendezvous.size) if rank not in rendezvous.seats]
    text = (
        f"of {rendezvous.size} did not arrive within {timeout_s:g} s ({name_ranks(sorted(rendezvous.seats))} did); "
        "look at their output, or give them longer with --start-timeout"
    )
    return Reply([], Complaint.ABSENT, text, absent)
