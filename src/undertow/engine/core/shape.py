"""The shape of a group: its processes, the shards that they own, and its options.

Workers and shards are counted separately.  `owners` is the only mapping from a shard to its process; everything else
in the engine identifies a process by its rank.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from undertow.settings import Priority, Sharing
from undertow.sizing import Sizes, count_credit_slices

COORDINATOR = 0  # rank of the worker in whose process the coordinator runs


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Processes and options of a group.  All but `rank` and `address` are the same on all ranks."""

    rank: int
    hosts: list[str]  # host of every process, by rank: first the workers, then the dedicated servers
    job: int
    sizes: Sizes
    credit_bytes: int  # 0: enough for `credit_slices` slices of the current size
    silence_timeout_s: float
    stall_timeout_s: float
    wait_free: bool = True
    priority: Priority = Priority.BOTH
    plan: str = "auto"
    profile: str = ""
    identity: str = ""  # unique name of the job
    sharing: Sharing | None = None  # how jobs take turns on shared devices; None if they do not
    address: str = ""  # address of the interface at which peers reach this worker
    names: tuple[int, ...] = ()  # ranks in the whole job, if this group is a subset of its workers
    dedicated_servers: int = 0  # processes that own shards and do not train; if there are none, each worker owns one

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
        """The number of slices that may be in flight, unless `credit_bytes` is set."""
        return count_credit_slices(self.processes - 1)

    @functools.cached_property
    def peers(self) -> list[int]:
        """All other processes in sending order.  Each rank starts at another peer, so no link is everyone's target."""
        return sorted(set(range(self.processes)) - {self.rank}, key=self.distance)

    @functools.cached_property
    def other_workers(self) -> list[int]:
        """The workers among the peers, in the same order."""
        return [peer for peer in self.peers if peer < self.workers]

    def name(self, rank: int) -> int:
        """Return the number that messages give this rank: its rank in the whole job."""
        return self.names[rank] if self.names else rank

    def distance(self, rank: int) -> int:
        """Return the position of a rank in the sending order of `peers`, from 1; 0 for this rank."""
        return (rank - self.rank) % len(self.hosts)
