"""The cluster as the planner sees it.

In: figures, measured or given.  Out: counts and rates that transfers and products take their times from.
"""

from __future__ import annotations

import msgspec

from undertow.bounds import RATE, WORLD_SIZE, show

# The share of a full Ethernet frame of 1514 bytes that is not headers.
PAYLOAD_SHARE = 1448 / 1514


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Equal hosts with one link each; where hosts differ, figures of the slowest."""

    workers: int
    servers: int = 0  # 0 becomes the number of workers: one on each worker's host
    bytes_per_s: float  # of slices on one link, each way
    latency_s: float = 0.0001  # one way
    flops_per_s: float  # matrix products of the training device
    shard_flops_per_s: float  # matrix products of the engine, beside the training
    add_bytes_per_s: float = 2e9  # sums at a shard
    allreduce_bytes_per_s: float | None = None  # of torch's own process group; None where there is none
    multiplies_alike: bool = True  # a product has the same bits on every host

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "servers", self.servers or self.workers)
        WORLD_SIZE.check_range(f"a cluster of {show(self.workers)} workers", self.workers)
        WORLD_SIZE.check_range(f"a cluster with {show(self.servers)} servers", self.servers)
        for name in ("bytes_per_s", "flops_per_s", "shard_flops_per_s", "add_bytes_per_s"):
            RATE.check_range(f"a cluster whose {name} is {getattr(self, name):g}", getattr(self, name))
