"""The shape of a group: its processes, the shards that they own, and its options.

Workers and shards are counted apart.  `owners` is the one mapping from a shard to the process that has it; everything
else in the engine names a process by its rank.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from undertow.settings import Priority, Sharing
from undertow.sizing import Sizes, count_credit_slices

COORDINATOR = 0  # the rank of the worker in whose process it runs


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Processes and options of a group: the same on all its ranks but for `rank`."""

    rank: int
    hosts: list[str]  # of every process, by rank: the workers, then the dedicated servers
    job: int
    sizes: Sizes
    credit_bytes: int  # 0: `credit_slices` of the current size
    silence_timeout_s: float
    stall_timeout_s: float
    wait_free: bool = True
    priority: Priority = Priority.BOTH
    plan: str = "auto"
    profile: str = ""
    identity: str = ""  # of the job: no other has the same
    sharing: Sharing | None = None  # how jobs take turns on shared devices, if they do
    address: str = ""  # of the interface that this worker is reached at
    names: tuple[int, ...] = ()  # ranks in the whole job, if this group is a subset of its workers
    dedicated_servers: int = 0  # processes that own shards and do not train; without any, each worker owns one

    @property
    def processes(self) -> int:
        return len(self.hosts)

    @property
    def workers(self) -> int:
        return len(self.hosts) - self.dedicated_servers

    @property
    def owners(self) -> Sequence[int]:
        """The rank of the process that owns each shard, by the shard's number."""
        return range(self.workers, self.processes) if self.dedicated_servers else range(self.workers)

    @property
    def shards(self) -> int:
        return len(self.owners)

    @property
    def credit_slices(self) -> int:
        """The number of slices that may be in flight, unless their bytes are given."""
        return count_credit_slices(self.processes - 1)

    @functools.cached_property
    def peers(self) -> list[int]:
        """All other processes, in the order in which to send to them: as all begin elsewhere, no link is the target of
        all."""
        return sorted(set(range(self.processes)) - {self.rank}, key=self.distance)

    @functools.cached_property
    def other_workers(self) -> list[int]:
        """The workers among the peers, in the same order."""
        return [peer for peer in self.peers if peer < self.workers]

    def name(self, rank: int) -> int:
        """Return the number that messages give this rank: its rank in the whole job."""
        return self.names[rank] if self.names else rank

    def distance(self, rank: int) -> int:
        """Return the number of ranks that are sent to before this one when all are."""
        return (rank - self.rank) % len(self.hosts)
