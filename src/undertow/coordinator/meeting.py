"""Meetings, without sockets: decides who is there and what each one is told.

In: somebody joins or leaves, time passes.  Out: replies, each to one participant.
A meeting is complete when all its ranks are there; it is then forgotten, so a
name can be used again.  The first deadline that passes ends the meeting for
everybody present, because the one who gives up will not come back.
Never looks at a payload.  `now_s` is always the caller's clock.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from undertow.bounds import TIMEOUT_S
from undertow.core.decoding import Rank, Seconds

MAX_PAYLOAD_BYTES = 1 << 20
MAX_SIZE = 1 << 16
# To this meeting rank 0 comes alone, when it is connected to all workers.
WORKERS_MET = "workers met"


class Join(msgspec.Struct, frozen=True, array_like=True):
    """What a participant says: my place in this meeting, and what the others shall know."""

    meeting: Annotated[str, msgspec.Meta(max_length=256)]
    rank: Rank
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_SIZE)]
    payload: Annotated[bytes, msgspec.Meta(max_length=MAX_PAYLOAD_BYTES)]
    timeout_s: Seconds  # as the caller gave it, for the words
    left_s: Seconds  # what remains of it after connecting


class Complaint(enum.Enum):
    """Why a participant leaves without the others' payloads."""

    ABSENT = "absent"  # others did not come in time
    TAKEN = "taken"  # the rank is somebody else's, or impossible
    DISAGREE = "disagree"  # the others expect another number of ranks


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What a participant hears: payloads in rank order, or a complaint in words."""

    payloads: list[bytes]
    complaint: Complaint | None = None
    text: str = ""


Replies = list[tuple[Hashable, Reply]]


@dataclass
class _Seat:
    who: Hashable
    payload: bytes
    timeout_s: float
    deadline_s: float


@dataclass
class _Meeting:
    size: int
    seats: dict[int, _Seat] = field(default_factory=dict)  # by rank; never empty, never full between two calls


class Meetings:
    """Everybody who waits at one meeting point.  Not thread safe: one loop owns it."""

    def __init__(self) -> None:
        self._meetings: dict[str, _Meeting] = {}
        self._places: dict[Hashable, tuple[str, int]] = {}  # exactly the occupied seats

    def join(self, who: Hashable, request: Join, now_s: float) -> Replies:
        """Seat `who`; answers everybody when that completes the meeting."""
        meeting = self._meetings.get(request.meeting) or _Meeting(request.size)
        refusal = _find_fault(meeting, request)
        if refusal:
            return [(who, refusal)]
        self._meetings[request.meeting] = meeting
        left_s = min(TIMEOUT_S.most, request.left_s)  # more, or NaN, would end the thread that waits for it
        meeting.seats[request.rank] = _Seat(who, request.payload, request.timeout_s, now_s + left_s)
        self._places[who] = (request.meeting, request.rank)
        if len(meeting.seats) < meeting.size:
            return []
        payloads = [meeting.seats[rank].payload for rank in range(meeting.size)]
        return self._dissolve(request.meeting, Reply(payloads))

    def leave(self, who: Hashable) -> None:
        """Free the seat of a participant whose connection is gone."""
        if who not in self._places:
            return
        name, rank = self._places.pop(who)
        del self._meetings[name].seats[rank]
        if not self._meetings[name].seats:
            del self._meetings[name]

    def expire(self, now_s: float) -> Replies:
        """End every meeting in which somebody has waited for too long."""
        replies: Replies = []
        for name in list(self._meetings):
            late = [seat for seat in self._meetings[name].seats.values() if seat.deadline_s <= now_s]
            if late:
                timeout_s = min(seat.timeout_s for seat in late)
                text = _describe_absence(self._meetings[name], timeout_s)
                replies += self._dissolve(name, Reply([], Complaint.ABSENT, text))
        return replies

    def next_deadline_s(self) -> float | None:
        """When `expire` has something to do; None while nobody waits."""
        deadlines = [seat.deadline_s for meeting in self._meetings.values() for seat in meeting.seats.values()]
        return min(deadlines, default=None)

    def _dissolve(self, name: str, reply: Reply) -> Replies:
        seats = self._meetings.pop(name).seats.values()
        for seat in seats:
            del self._places[seat.who]
        return [(seat.who, reply) for seat in seats]


def _find_fault(meeting: _Meeting, request: Join) -> Reply | None:
    if request.rank >= request.size:
        text = f"rank {request.rank} is outside of 0 to {request.size - 1}: check RANK and WORLD_SIZE"
        return Reply([], Complaint.TAKEN, text)
    if request.size != meeting.size:
        text = (
            f"rank {request.rank} expects {request.size} ranks at meeting {request.meeting!r}, "
            f"but {name_ranks(sorted(meeting.seats))} before it expected {meeting.size}: start all with the same number"
        )
        return Reply([], Complaint.DISAGREE, text)
    if request.rank in meeting.seats:
        text = f"rank {request.rank} of {request.size} is taken: two processes claim it at meeting {request.meeting!r}"
        return Reply([], Complaint.TAKEN, f"{text}; give each its own rank (RANK or --node-rank)")
    return None


def _describe_absence(meeting: _Meeting, timeout_s: float) -> str:
    absent = [rank for rank in range(meeting.size) if rank not in meeting.seats]
    return (
        f"{name_ranks(absent)} of {meeting.size} did not arrive within {timeout_s:g} s "
        f"({name_ranks(sorted(meeting.seats))} did); look at their output, or give them longer with --start-timeout"
    )


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks as a phrase: `rank 2`, `ranks 2 and 3`, `ranks 0, 1 and 4`; long lists are cut."""
    shown = [str(rank) for rank in ranks[:16]]
    if len(ranks) > 16:
        shown.append(f"{len(ranks) - 16} more")
    if len(shown) == 1:
        return f"rank {shown[0]}"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
