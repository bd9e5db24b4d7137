"""What the planner must know of the machines.

In: figures, measured or given.  Out: how long a transfer or a product takes.
"""

from __future__ import annotations

import msgspec

from undertow.bounds import RATE, WORLD_SIZE, show

# What is left of a full Ethernet frame of 1514 bytes without its headers.
PAYLOAD_SHARE = 1448 / 1514


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Equal hosts, one link each; where they differ, as the slowest of them."""

    workers: int
    bytes_per_s: float  # what one link carries of slices, each way
    latency_s: float = 0.0001  # one way
    flops_per_s: float  # matrix products of the training device
    shard_flops_per_s: float  # the same in the engine, beside the training
    add_bytes_per_s: float = 2e9  # sums at a shard
    allreduce_bytes_per_s: float | None = None  # of torch's own process group; None where there is none
    multiplies_alike: bool = True  # a product has the same bits on every host

    def __post_init__(self) -> None:
        WORLD_SIZE.check_range(f"a cluster of {show(self.workers)} workers", self.workers)
        for name in ("bytes_per_s", "flops_per_s", "shard_flops_per_s", "add_bytes_per_s"):
            RATE.check_range(f"a cluster whose {name} is {getattr(self, name):g}", getattr(self, name))
