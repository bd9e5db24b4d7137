"""What a trace says, in types: the ranks, and of each its steps, its training thread and its wires.

Times are whole nanoseconds of rank 0's clock: sums of them are exact, so that parts add up to their whole to the digit.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from undertow.plan.cluster import Cluster
from undertow.plan.plan import Plan
from undertow.plan.profile import Profile


class Lane(enum.StrEnum):
    """What a training thread does; the names are the trace's `cat`."""

    FORWARD = "forward"
    BACKWARD = "backward"
    HOOK = "hook"
    WAIT = "wait"
    APPLY = "apply"
    OPTIMIZER = "optimizer"
    TURN_WAIT = "turn-wait"


class Span(msgspec.Struct, gc=False):
    """Something of the training thread, of the shard, or of torch's process group; thousands are in memory at once."""

    cat: str
    name: str
    begin_ns: int
    end_ns: int
    step: int
    tensors: tuple[str, ...] = ()
    reason: str = ""
    key: int = -1
    round: int = -1
    size_bytes: int = 0


class Wire(msgspec.Struct, gc=False):
    """One slice on a link: as its sender saw it, or its receiver.  Minus one is a time that nobody knows."""

    kind: str
    key: int
    round: int
    step: int
    size_bytes: int
    peer: int
    tensors: tuple[str, ...]
    begin_ns: int
    end_ns: int
    queued_ns: int = -1
    sent_ns: int = -1
    arrived_ns: int = -1

    @property
    def wire_ns(self) -> int | None:
        """From its leaving the outbox to its last byte at the receiver."""
        if self.sent_ns < 0 or self.arrived_ns < 0:
            return None
        # Clocks are compared to within some microseconds: a slice may seem to arrive before it left.
        return max(0, self.arrived_ns - self.sent_ns)

    @property
    def waited_ns(self) -> int | None:
        """In the outbox."""
        return None if min(self.sent_ns, self.queued_ns) < 0 else max(0, self.sent_ns - self.queued_ns)


@dataclass(frozen=True)
class Step:
    number: int
    begin_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class Planned:
    """A plan came into force; `profile` and `cluster` are what it was made of."""

    time_ns: int
    plan: Plan
    profile: Profile | None
    cluster: Cluster | None


@dataclass(frozen=True)
class Header:
    """What a rank says of itself."""

    rank: int
    world_size: int
    host: str = ""
    version: str = ""
    source: str = "worker"
    script: str = ""
    started: str = ""


@dataclass
class RankTrace:
    """One rank.  Every list is in the order of time."""

    header: Header
    steps: dict[int, Step] = field(default_factory=dict)
    lane: list[Span] = field(default_factory=list)
    shard: list[Span] = field(default_factory=list)
    reduced: list[Span] = field(default_factory=list)
    outs: list[Wire] = field(default_factory=list)
    ins: list[Wire] = field(default_factory=list)
    plans: list[Planned] = field(default_factory=list)
    gathered: set[int] = field(default_factory=set)  # keys whose pieces everybody gets as they are
    link_bytes_per_s: float | None = None
    clock_error_ns: int = 0
    ended: str | None = None  # why the record ends; None if it was cut off

    @property
    def rank(self) -> int:
        return self.header.rank


@dataclass(frozen=True)
class Trace:
    """Of one run.  `missing` says in words what is not there and should be."""

    folder: str
    world_size: int
    ranks: Mapping[int, RankTrace]
    missing: Sequence[str]

    @property
    def is_simulated(self) -> bool:
        return any(rank.header.source == "simulator" for rank in self.ranks.values())

    @property
    def planned(self) -> Planned | None:
        """The plan in force at the end; all ranks have the same."""
        found = [planned for rank in self.ranks.values() for planned in rank.plans]
        return max(found, key=lambda planned: planned.time_ns, default=None)
