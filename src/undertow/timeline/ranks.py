"""One row for every rank, and which of them the others wait for.

In: what each rank spent its steps with, and what its link carried.  Out: rows, the slow ranks, the slow links.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from undertow.timeline.links import LinkUse
from undertow.timeline.spending import Spent

# A rank whose compute is longer than the others' by more than this is a straggler.
SLOWER = 1.10
# A link that carries less than this of the others' is a slow one.
SLOW_LINK = 0.8


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the counted steps; `spent_ns` adds up to `step_ns` exactly."""

    rank: int
    host: str
    steps: int
    step_ns: int
    spent_ns: dict[Spent, int]
    idle_wait_ns: int  # of the waiting: nothing was on this rank's link
    link: LinkUse

    def per_step(self, spent: Spent) -> float:
        """Nanoseconds of an average step."""
        return self.spent_ns[spent] / self.steps if self.steps else 0.0


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """It computes so much longer in a step than the others do in the middle."""

    rank: int
    host: str
    compute_ns: float
    others_ns: float

    @property
    def excess_ns(self) -> float:
        return self.compute_ns - self.others_ns


class SlowLink(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    host: str
    bytes_per_s: float
    others_bytes_per_s: float


def find_stragglers(rows: Sequence[RankRow]) -> list[Straggler]:
    """The slowest first."""
    found = []
    for row in rows:
        others = [other.per_step(Spent.COMPUTE) for other in rows if other is not row]
        if not others or not row.steps:
            continue
        compute_ns, others_ns = row.per_step(Spent.COMPUTE), statistics.median(others)
        if compute_ns > SLOWER * others_ns:
            found.append(Straggler(rank=row.rank, host=row.host, compute_ns=compute_ns, others_ns=others_ns))
    return sorted(found, key=lambda straggler: -straggler.compute_ns)


def find_slow_links(rows: Sequence[RankRow]) -> list[SlowLink]:
    """The slowest first."""
    rates = {row.rank: row.link.bytes_per_s for row in rows if row.link.bytes_per_s}
    found = []
    for row in rows:
        others = [rate for rank, rate in rates.items() if rank != row.rank]
        rate = rates.get(row.rank)
        if rate and others and rate < SLOW_LINK * statistics.median(others):
            slow = SlowLink(
                rank=row.rank, host=row.host, bytes_per_s=rate, others_bytes_per_s=statistics.median(others)
            )
            found.append(slow)
    return sorted(found, key=lambda link: link.bytes_per_s)
