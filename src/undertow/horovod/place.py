"""The variables by which a worker of Horovod's sees its place, set where undertow serves the script.

In: a worker's numbers.  Out: the variables, under Horovod's names.  Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from undertow.hidden import HOROVOD
from undertow.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Place:
    """A worker's numbers among all workers, on its host, and its host's among all hosts."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def to_environment(self) -> dict[str, str]:
        return {variable: str(getattr(self, variable.removeprefix("HOROVOD_").lower())) for variable in HOROVOD}


def guess_place(settings: Settings) -> Place:
    """Before the workers have met.  The numbers of hosts assume that all hosts have as many workers as this one."""
    first, each = settings.rank - settings.local_rank, max(settings.local_world_size, 1)
    return Place(
        rank=settings.rank,
        size=settings.world_size,
        local_rank=settings.local_rank,
        local_size=settings.local_world_size,
        cross_rank=first // each,
        cross_size=-(-settings.world_size // each),
    )
