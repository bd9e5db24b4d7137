"""Failure detection among the launchers of a job until the workers have met: decides, without sockets and clocks.

In: messages and closed connections of other launchers; local workers that failed, ended or are stopped; what the local
workers wait for; the time.
Out: messages to other launchers, `StartWorkers` when all are connected, at most one `EndWorkers` with the first cause.
The first host is the hub: the others are connected only to it, and it forwards their messages.

A process that was killed counts as lost at once.  One that was stopped or is silent counts as lost only while another
worker waits for it: a job whose workers never wait for each other may be stopped for as long as its user likes
(docs/decisions/0012).
Once the workers have met, their own membership detects losses, and this module decides nothing any more.
`now_s` is always the caller's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from undertow.errors import name_ranks
from undertow.runtime.launcher_notes import Mark

HUB = 0
BEAT_EVERY_S = 1.0
# The default time after which workers that have met count a silent peer as lost.
SILENCE_S = 10.0
# A launcher connects milliseconds after the hosts' rendezvous; only this limit detects one that is killed in between.
# Two packets may be lost: TCP sends the first one again after 1 s and 3 s.
ARRIVE_S = 3.2
BEFORE = "before the workers had met"


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """Heartbeat, with what workers of the sender's host wait for; from the hub, of all hosts but the receiver's."""

    waits: Mark = Mark.NONE


class Go(msgspec.Struct, frozen=True, array_like=True, tag="go"):
    """Permission to start workers: all launchers are connected, and the master's port is free."""


class Met(msgspec.Struct, frozen=True, array_like=True, tag="met"):
    """Message that the workers have met."""


class Left(msgspec.Struct, frozen=True, array_like=True, tag="left"):
    """Message that a worker has ended with exit code 0 without having met the others."""

    rank: int


class Lost(msgspec.Struct, frozen=True, array_like=True, tag="lost"):
    """Message that the job cannot start, with the first cause as text."""

    cause: str


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag="goodbye"):
    """Last message of a launcher that has nothing left to do: the end of its connection is not a loss."""


Message = Beat | Go | Met | Left | Lost | Goodbye


@dataclass(frozen=True)
class SendMessage:
    """Instruction to send a message to these hosts."""

    hosts: tuple[int, ...]
    message: Message


@dataclass(frozen=True)
class StartWorkers:
    """Instruction to start the workers of this host."""


@dataclass(frozen=True)
class EndWorkers:
    """Instruction to end the workers of this host."""

    cause: str


Instructions = list[SendMessage | StartWorkers | EndWorkers]


@dataclass(frozen=True)
class HostRanks:
    """A host's name, with the ranks of its workers."""

    name: str
    first_rank: int
    nproc: int

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.nproc)

    def describe(self, node_rank: int) -> str:
        return f"host {self.name} (--node-rank {node_rank}, {name_ranks(self.ranks)})"


def describe_cut(host: HostRanks, node_rank: int) -> str:
    """Describe the loss of a launcher whose connection has ended."""
    return f"the launcher on {host.describe(node_rank)} was killed, or its connection was cut, {BEFORE}"


def describe_silence(host: HostRanks, node_rank: int, silent_s: float) -> str:
    """Describe the loss of a launcher that sends nothing."""
    return (
        f"the launcher on {host.describe(node_rank)} gave no sign of life for {silent_s:.0f} s {BEFORE} "
        "(process stopped, host down or link cut)"
    )


def describe_absence(host: HostRanks, node_rank: int, silent_s: float) -> str:
    """Describe the loss of a launcher that never connected to the first one."""
    return (
        f"the launcher on {host.describe(node_rank)} has not connected to the first one within {silent_s:.0f} s "
        f"of the hosts' rendezvous, {BEFORE} (killed, or a firewall blocks the ports that the system chooses; try: "
        "undertow doctor)"
    )


class HostWatch:
    """One launcher's knowledge of the job's other launchers.  Not thread safe."""

    def __init__(self, node_rank: int, hosts: Sequence[HostRanks], *, now_s: float) -> None:
        self.has_met = False
        self.may_start = False
        self.cause = ""  # the first cause; never replaced
        self._node_rank = node_rank
        self._hosts, self._own = hosts, hosts[node_rank]
        others = range(1, len(hosts)) if node_rank == HUB else [HUB]
        self._received_s = dict.fromkeys(others, now_s)  # time of the last message, by host that has not said goodbye
        self._missing = set(others if node_rank == HUB else [])  # hosts that are not connected yet
        self._waits: dict[int, Mark] = {}  # by host, from its last heartbeat
        self._marks: Mapping[int, Mark] = {}  # by rank, of the workers of this host
        self._left: list[int] = []  # ranks that ended without having met the others
        self._ticked_s = now_s

    @property
    def is_over(self) -> bool:
        """Whether nothing can be decided any more."""
        return self.has_met or bool(self.cause)

    def awaits(self, host: int) -> bool:
        """Whether the launcher of this host is to connect to this one."""
        return self._node_rank == HUB and 0 < host < len(self._hosts)

    def note_arrived(self, host: int, now_s: float) -> Instructions:
        """Record that another launcher has connected to this one, which is the hub."""
        if host not in self._missing or self.is_over:
            return []
        self._received_s[host] = now_s
        self._missing.remove(host)
        if self._missing:
            return []
        self.may_start = True
        return [*self._send(Go()), StartWorkers()]

    def handle_message(self, host: int, message: Message, now_s: float) -> Instructions:
        if host not in self._received_s:
            return []
        self._received_s[host] = now_s
        match message:
            case Beat(waits):
                self._waits[host] = waits
            case Goodbye():
                self._forget(host)
            case Go() if self._node_rank != HUB and not self.may_start:
                self.may_start = True
                return [StartWorkers()]
            case Met():
                return self.note_met()
            case Left(rank):
                return self.note_left(rank, source=host)
            case Lost(cause):
                return self._report_loss(cause, source=host)
        return []

    def note_marks(self, marks: Mapping[int, Mark]) -> Instructions:
        """Record the marks of this host's workers; if it is the only host, they show when the workers have met."""
        self._marks = marks
        is_all_met = len(self._hosts) == 1 and all(mark is Mark.MET for mark in marks.values())
        return self.note_met() if is_all_met else []

    def note_closed(self, host: int) -> Instructions:
        """Record that a connection has ended, which is not a loss after a goodbye."""
        if host not in self._received_s:
            return []
        self._forget(host)
        return self._report_loss(describe_cut(self._hosts[host], host))

    def note_met(self) -> Instructions:
        """Record that all workers are connected."""
        if self.is_over:
            return []
        self.has_met = True
        return self._send(Met()) if self._node_rank == HUB else []

    def note_failed(self, rank: int, how: str) -> Instructions:
        """Tell the other hosts that a worker of this host failed; the supervisor ends the others here."""
        instructions = self._report_loss(f"rank {rank} on host {self._own.name} {how} {BEFORE}")
        return [each for each in instructions if isinstance(each, SendMessage)]

    def note_left(self, rank: int, *, source: int | None = None) -> Instructions:
        """Record that a worker ended with exit code 0 before the workers met; `source` is its host, if not this one."""
        if self.is_over or not 0 <= rank < self._hosts[-1].ranks.stop:
            return []
        self._left.append(rank)
        if source is not None:  # this worker may be the one that waited; the next heartbeat shows whether it was
            self._waits.pop(source, None)
        return self._send(Left(rank), except_host=source)

    def note_stopped(self, rank: int, pid: int) -> Instructions:
        """Record that a worker of this host is stopped; to be called repeatedly while it stays stopped."""
        if len(self._hosts) == 1 or not self._is_awaited(Mark.WAITS, except_rank=rank):
            return []
        return self._report_loss(f"rank {rank} on host {self._own.name} was stopped (SIGSTOP; pid {pid}) {BEFORE}")

    def note_leaving(self, reason: str) -> Instructions:
        """Tell the other hosts that this launcher gives up, and why."""
        own = self._own.describe(self._node_rank)
        instructions = self._report_loss(f"the launcher on {own} {reason} {BEFORE}")
        return [each for each in instructions if isinstance(each, SendMessage)]

    def tick(self, now_s: float) -> Instructions:
        """Send heartbeats, and look for missing hosts and workers; to be called every `BEAT_EVERY_S`."""
        # Time in which this process did not run (stopped, or the host slept) does not count: it received nothing then.
        missed_s = max(0.0, now_s - self._ticked_s - 2 * BEAT_EVERY_S)
        self._ticked_s = now_s
        for host, received_s in self._received_s.items():
            self._received_s[host] = received_s + missed_s
        instructions: Instructions = [
            SendMessage((host,), Beat(self._find_wait(except_host=host)))
            for host in self._received_s
            if host not in self._missing
        ]
        for host, received_s in list(self._received_s.items()):
            if self._is_silent(host, now_s - received_s):
                describe = describe_absence if host in self._missing else describe_silence
                instructions += self._report_loss(describe(self._hosts[host], host, now_s - received_s))
        if self._left and self._is_awaited(Mark.WAITS_FOR_ALL):
            instructions += self._report_loss(self._describe_left(self._left[0]))
        return instructions

    def _is_silent(self, host: int, silent_s: float) -> bool:
        if host in self._missing:
            return silent_s > ARRIVE_S
        # Before the start the launchers themselves wait for each other.
        is_awaited = not self.may_start or self._is_awaited(Mark.WAITS, except_host=host)
        return silent_s > SILENCE_S and is_awaited

    def _is_awaited(self, mark: Mark, *, except_host: int | None = None, except_rank: int | None = None) -> bool:
        """Whether a worker waits at least as `mark` says, not counting the excepted host or rank."""
        return self._find_wait(except_host=except_host, except_rank=except_rank) >= mark

    def _find_wait(self, *, except_host: int | None = None, except_rank: int | None = None) -> Mark:
        own = (mark for rank, mark in self._marks.items() if rank != except_rank)
        others = (mark for host, mark in self._waits.items() if host != except_host)
        # A connected worker waits for the others too, until the first launcher knows that all are connected.
        return max((*own, *others), default=Mark.NONE)

    def _describe_left(self, rank: int) -> str:
        host = next(host for host in self._hosts if rank in host.ranks)
        return f"rank {rank} on host {host.name} ended with exit code 0 {BEFORE}, and others wait for it"

    def _forget(self, host: int) -> None:
        self._received_s.pop(host)
        self._waits.pop(host, None)
        self._missing.discard(host)

    def _report_loss(self, cause: str, *, source: int | None = None) -> Instructions:
        if self.is_over:
            return []
        self.cause = cause
        return [*self._send(Lost(cause), except_host=source), EndWorkers(cause)]

    def _send(self, message: Message, *, except_host: int | None = None) -> Instructions:
        hosts = tuple(host for host in self._received_s if host != except_host)
        return [SendMessage(hosts, message)] if hosts else []
