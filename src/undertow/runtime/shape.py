"""What a group is made of; the same on all its ranks but for `rank`."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from undertow.plan.sizing import Sizes
from undertow.settings import Priority, Sharing

COORDINATOR = 0  # the rank that it lives with


@dataclass(frozen=True, kw_only=True)
class Shape:
    rank: int
    hosts: list[str]
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
    sharing: Sharing | None = None  # who takes turns with others
    address: str = ""  # of the interface that this worker is reached at
    names: tuple[int, ...] = ()  # the ranks in the whole job, if this group is a part of it

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def credit_slices(self) -> int:
        """How many slices may be in flight, unless their bytes are given."""
        # Four per peer: of two links that both carry data all the time, one slice waits in each direction, and one
        # is on its way.  With half of it a link of 2 to 4 Gbit/s stands still for a tenth of the time.
        # More than twelve in all only let an urgent slice wait longer: in the simulator VGG19-22K on 32 hosts at 10
        # Gbit/s takes 1009 ms with twelve and 1084 with sixteen.
        return min(max(8, 4 * (self.size - 1)), 12)

    @functools.cached_property
    def peers(self) -> list[int]:
        """All others, in the order in which to send to them: if all begin elsewhere, no link is the target of all."""
        return sorted(set(range(self.size)) - {self.rank}, key=self.distance)

    def name(self, rank: int) -> int:
        """The number by which messages call this rank: its rank in the whole job."""
        return self.names[rank] if self.names else rank

    def distance(self, rank: int) -> int:
        """How late it is this rank's turn, where all are sent to."""
        return (rank - self.rank) % self.size
