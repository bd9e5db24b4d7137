"""The trace of a run as data: the steps, training thread and wires of each rank.

Times are whole nanoseconds of rank 0's clock, so that sums are exact.
The sender's record of a slice is matched with the receiver's: the sender's then also has the time of arrival, and the
receiver's the times of queueing and sending.  Slices of one link arrive in the order of sending, so the n-th slice sent
with a kind, key and round is the n-th that arrived.
"""

from __future__ import annotations

import enum
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from undertow.observe.trace.chrome import TraceHeader
from undertow.plan.cluster import Cluster
from undertow.plan.plan import Plan
from undertow.plan.profile import Profile


class SpanKind(enum.StrEnum):
    """Kind of a span of a training thread; the values are the trace's `cat`."""

    FORWARD = "forward"
    BACKWARD = "backward"
    HOOK = "hook"
    WAIT = "wait"
    APPLY = "apply"
    OPTIMIZER = "optimizer"
    TURN_WAIT = "turn-wait"


class Span(msgspec.Struct, gc=False):
    """A span of the training thread, the shard or torch's process group.  Thousands are in memory at once."""

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
    """A slice on a link, as recorded by its sender or by its receiver.  A time of -1 is unknown."""

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
        """Return the time from leaving the send queue to the arrival of the last byte."""
        if self.sent_ns < 0 or self.arrived_ns < 0:
            return None
        # Clocks agree only to within a few microseconds, so a slice may seem to arrive before it was sent.
        return max(0, self.arrived_ns - self.sent_ns)

    @property
    def waited_ns(self) -> int | None:
        """Return the time in the send queue."""
        return None if min(self.sent_ns, self.queued_ns) < 0 else max(0, self.sent_ns - self.queued_ns)


@dataclass(frozen=True)
class Step:
    """A step of one rank."""

    number: int
    begin_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class PlanInForce:
    """A plan and the time at which it came into force; it was made from `profile` and `cluster`."""

    time_ns: int
    plan: Plan
    profile: Profile | None
    cluster: Cluster | None


@dataclass
class RankTrace:
    """The trace of one rank.  Every list is in chronological order."""

    header: TraceHeader
    steps: dict[int, Step] = field(default_factory=dict)
    thread: list[Span] = field(default_factory=list)
    shard: list[Span] = field(default_factory=list)
    reduced: list[Span] = field(default_factory=list)
    outs: list[Wire] = field(default_factory=list)
    ins: list[Wire] = field(default_factory=list)
    plans: list[PlanInForce] = field(default_factory=list)
    gathered: set[int] = field(default_factory=set)  # keys that are gathered, not summed
    link_bytes_per_s: float | None = None
    clock_error_ns: int = 0
    ended: str | None = None  # why recording ended; None if the file was cut off

    @property
    def rank(self) -> int:
        return self.header.rank


@dataclass(frozen=True)
class Trace:
    """The traces of one run.  `missing` has a sentence for everything that is missing from them."""

    folder: str
    world_size: int
    ranks: Mapping[int, RankTrace]
    missing: Sequence[str]

    @property
    def is_simulated(self) -> bool:
        return any(rank.header.source == "simulator" for rank in self.ranks.values())

    def list_step(self, number: int) -> list[Step]:
        """List one step, which must be complete, as each rank recorded it."""
        return [rank.steps[number] for rank in self.ranks.values()]

    def find_window(self, number: int) -> Step:
        """Return the time from when the first rank began a step until the last one ended it."""
        steps = self.list_step(number)
        return Step(number, min(step.begin_ns for step in steps), max(step.end_ns for step in steps))

    @property
    def planned(self) -> PlanInForce | None:
        """Return the plan in force at the end, the same on all ranks."""
        found = [planned for rank in self.ranks.values() for planned in rank.plans]
        return max(found, key=lambda planned: planned.time_ns, default=None)


def match_wires(trace: Trace) -> None:
    received = {rank.rank: _group_by_sender(rank) for rank in trace.ranks.values()}
    for sender in trace.ranks.values():
        sent: dict[tuple[int, str, int, int], deque[Wire]] = defaultdict(deque)
        for out in sender.outs:
            sent[out.peer, out.kind, out.key, out.round].append(out)
        for rank, by_sender in received.items():
            for wire in by_sender[sender.rank]:
                unmatched = sent.get((rank, wire.kind, wire.key, wire.round))
                if unmatched:
                    out = unmatched.popleft()
                    out.arrived_ns = wire.end_ns
                    wire.sent_ns, wire.queued_ns = out.sent_ns, out.queued_ns


def _group_by_sender(rank: RankTrace) -> dict[int, list[Wire]]:
    by_sender: dict[int, list[Wire]] = defaultdict(list)
    for wire in rank.ins:
        by_sender[wire.peer].append(wire)
    return by_sender


def count_unmatched(trace: Trace, steps: Collection[int]) -> tuple[int, int]:
    """Count the slices sent in these steps to ranks with a file; return how many the receiver's file lacks, and all."""
    sent = [out for rank in trace.ranks.values() for out in rank.outs if out.step in steps and out.peer in trace.ranks]
    return sum(out.arrived_ns < 0 for out in sent), len(sent)


def name_steps(numbers: Sequence[int]) -> str:
    """Name steps: `step 7`, `steps 6 to 40`, `12 steps from 3 to 40`."""
    if len(numbers) == 1:
        return f"step {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"steps {numbers[0]} to {numbers[-1]}"
    return f"{len(numbers)} steps from {numbers[0]} to {numbers[-1]}"


def name_tensors(tensors: Sequence[str]) -> str:
    """Name the tensors of a slice: `fc.weight`, `bn1.weight + 3 more`."""
    if not tensors:
        return "unnamed"
    return tensors[0] if len(tensors) == 1 else f"{tensors[0]} + {len(tensors) - 1} more"
