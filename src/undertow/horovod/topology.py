"""Which host each rank is on, in Horovod's words: pure.

In: the host of every rank.  Out: numbers of hosts, and whether all have as many ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def cross_rank(hosts: Sequence[str], rank: int) -> int:
    """The number of this rank's host, in the order of their first ranks."""
    return list(dict.fromkeys(hosts)).index(hosts[rank])


def cross_size(hosts: Sequence[str]) -> int:
    return len(set(hosts))


def is_homogeneous(hosts: Sequence[str]) -> bool:
    return len(set(Counter(hosts).values())) == 1
