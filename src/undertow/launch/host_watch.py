"""What the launchers of a job tell each other until the workers have met: decides, without sockets and clocks.

In: a launcher was heard, closed its connection or told something; a local worker failed or is stopped; time passes.
Out: messages for other launchers, and at most one `EndWorkers` with the first cause.
The first host is the hub: it hears all others and passes on what one of them tells; the others hear only the hub.
From the moment at which the workers have met their own membership notices losses, and nothing is decided here any more.
`now_s` is always the caller's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from undertow.coordinator.meeting import name_ranks

HUB = 0
BEAT_EVERY_S = 1.0
# As long as workers that have met wait for each other.
SILENCE_S = 10.0
BEFORE = "before the workers had met"


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """A sign of life."""


class Met(msgspec.Struct, frozen=True, array_like=True, tag="met"):
    """The workers have met."""


class Lost(msgspec.Struct, frozen=True, array_like=True, tag="lost"):
    """The job cannot start: the first cause in words."""

    cause: str


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag="goodbye"):
    """This launcher has nothing left to do: the end of its connection is no loss."""


Message = Beat | Met | Lost | Goodbye


@dataclass(frozen=True)
class Tell:
    """Send a message to these hosts."""

    hosts: tuple[int, ...]
    message: Message


@dataclass(frozen=True)
class EndWorkers:
    """End the workers of this host."""

    cause: str


Instructions = list[Tell | EndWorkers]


@dataclass(frozen=True)
class HostPlace:
    """A host as the others name it."""

    name: str
    first_rank: int
    nproc: int

    def describe(self, node_rank: int) -> str:
        ranks = name_ranks(range(self.first_rank, self.first_rank + self.nproc))
        return f"host {self.name} (--node-rank {node_rank}, {ranks})"


class HostWatch:
    """The other launchers of a job as one of them sees them.  Not thread safe."""

    def __init__(self, node_rank: int, hosts: Sequence[HostPlace], *, now_s: float) -> None:
        self.has_met = False
        self.cause = ""  # the first; never replaced
        self._node_rank = node_rank
        self._hosts = hosts
        others = range(1, len(hosts)) if node_rank == HUB else [HUB]
        self._heard_s = dict.fromkeys(others, now_s)  # exactly the hosts with a connection to this one
        self._ticked_s = now_s

    @property
    def is_over(self) -> bool:
        """Whether nothing can be decided any more."""
        return self.has_met or bool(self.cause)

    def hear(self, host: int, message: Message, now_s: float) -> Instructions:
        """Take a message of another launcher."""
        if host not in self._heard_s:
            return []
        self._heard_s[host] = now_s
        if isinstance(message, Goodbye):
            del self._heard_s[host]
        elif isinstance(message, Met):
            return self.note_met()
        elif isinstance(message, Lost):
            return self._lose(message.cause, source=host)
        return []

    def note_closed(self, host: int) -> Instructions:
        """A connection has ended; after a goodbye that is no loss."""
        if self._heard_s.pop(host, None) is None:
            return []
        return self._lose(
            f"the launcher on {self._hosts[host].describe(host)} was killed, or its connection was cut, {BEFORE}"
        )

    def note_met(self) -> Instructions:
        """All workers are connected."""
        if self.is_over:
            return []
        self.has_met = True
        return self._tell(Met()) if self._node_rank == HUB else []

    def note_failed(self, rank: int, how: str) -> Instructions:
        """A worker of this host ended badly; the supervisor ends the others here."""
        told = self._lose(f"rank {rank} on host {self._own.name} {how} {BEFORE}")
        return [each for each in told if isinstance(each, Tell)]

    def note_stopped(self, rank: int, pid: int) -> Instructions:
        """A worker of this host was stopped, and has stayed so."""
        return self._lose(f"rank {rank} on host {self._own.name} was stopped (SIGSTOP; pid {pid}) {BEFORE}")

    def note_leaving(self, reason: str) -> Instructions:
        """This launcher gives up, for a reason of its own."""
        own = self._own.describe(self._node_rank)
        told = self._lose(f"the launcher on {own} {reason} {BEFORE}")
        return [each for each in told if isinstance(each, Tell)]

    def tick(self, now_s: float) -> Instructions:
        """Give a sign of life, and look for launchers that give none; to be called every `BEAT_EVERY_S`."""
        # If this process did not run (stopped, or the host slept), it could hear no one: all get that time back.
        missed_s = max(0.0, now_s - self._ticked_s - 2 * BEAT_EVERY_S)
        self._ticked_s = now_s
        instructions = self._tell(Beat())
        for host, heard_s in self._heard_s.items():
            self._heard_s[host] = heard_s + missed_s
        for host, heard_s in list(self._heard_s.items()):
            if now_s - heard_s > SILENCE_S:
                instructions += self._lose(
                    f"the launcher on {self._hosts[host].describe(host)} gave no sign of life for "
                    f"{now_s - heard_s:.0f} s {BEFORE} (process stopped, host down or link cut)"
                )
        return instructions

    @property
    def _own(self) -> HostPlace:
        return self._hosts[self._node_rank]

    def _lose(self, cause: str, *, source: int | None = None) -> Instructions:
        if self.is_over:
            return []
        self.cause = cause
        return [*self._tell(Lost(cause), but=source), EndWorkers(cause)]

    def _tell(self, message: Message, *, but: int | None = None) -> Instructions:
        hosts = tuple(host for host in self._heard_s if host != but)
        return [Tell(hosts, message)] if hosts else []
