"""The planner's description of a cluster.

In: figures, measured or given.  Out: the counts and rates from which the times of transfers and products follow.
"""

from __future__ import annotations

import msgspec

from undertow.bounds import RATE, WORLD_SIZE, show

# Share of a full Ethernet frame of 1514 bytes that is left after the headers.
PAYLOAD_SHARE = 1448 / 1514


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Equal hosts with one link each.  If hosts differ, the figures are those of the slowest."""

    workers: int
    servers: int = 0  # 0 becomes the number of workers, with one server on each worker's host
    bytes_per_s: float  # rate of slices on one link, in each direction
    latency_s: float = 0.0001  # in one direction
    flops_per_s: float  # matrix products on the training device
    shard_flops_per_s: float  # matrix products in the engine, beside the training
    add_bytes_per_s: float = 2e9  # sums in a shard
    allreduce_bytes_per_s: float | None = None  # rate of torch's process group; None if there is none
    multiplies_alike: bool = True  # whether a product has the same bits on every host

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "servers", self.servers or self.workers)
        WORLD_SIZE.check_range(f"a cluster of {show(self.workers)} workers", self.workers)
        WORLD_SIZE.check_range(f"a cluster with {show(self.servers)} servers", self.servers)
        for name in ("bytes_per_s", "flops_per_s", "shard_flops_per_s", "add_bytes_per_s"):
            RATE.check_range(f"a cluster whose {name} is {getattr(self, name):g}", getattr(self, name))
