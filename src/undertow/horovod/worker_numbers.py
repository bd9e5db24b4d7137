"""A worker's ranks and sizes in Horovod's terms, and the environment variables HOROVOD_RANK and the like.

In: the settings, and the host of every rank.  Out: the numbers and the variables.  Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from undertow.hidden import HOROVOD
from undertow.settings import Settings


@dataclass(frozen=True, kw_only=True)
class WorkerNumbers:
    """Rank and size of a worker among all workers and on its host, and of its host among all hosts."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def to_environment(self) -> dict[str, str]:
        return {variable: str(getattr(self, variable.removeprefix("HOROVOD_").lower())) for variable in HOROVOD}


def guess_numbers(settings: Settings) -> WorkerNumbers:
    """Guess the numbers before the rendezvous, assuming that all hosts have as many workers as this one."""
    first, each = settings.rank - settings.local_rank, max(settings.local_world_size, 1)
    return WorkerNumbers(
        rank=settings.rank,
        size=settings.world_size,
        local_rank=settings.local_rank,
        local_size=settings.local_world_size,
        cross_rank=first // each,
        cross_size=-(-settings.world_size // each),
    )


def find_numbers(settings: Settings, *, rank: int, hosts: Sequence[str]) -> WorkerNumbers:
    """Return the numbers of a rank; hosts are numbered in the order of their first ranks."""
    numbered = list(dict.fromkeys(hosts))
    return WorkerNumbers(
        rank=rank,
        size=len(hosts),
        local_rank=settings.local_rank,
        local_size=settings.local_world_size,
        cross_rank=numbered.index(hosts[rank]),
        cross_size=len(numbered),
    )


def is_homogeneous(hosts: Sequence[str]) -> bool:
    """Return whether all hosts have the same number of ranks."""
    return len(set(Counter(hosts).values())) == 1
