"""Stages 3 and 8 without a framework: virtual syncers, which turn ready gradients into contributions.

In: slices, as the real slicer has cut them, and the plan's schemes.  Out: contributions to a worker's engine.
They make the same contributions as the syncers of `undertow.sync`, but only the sizes matter here.  One set serves all
workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import EVERYONE, Op
from undertow.engine.core.slicing import ShardRows, Slice, find_shards
from undertow.plan.cluster import Cluster
from undertow.plan.profile import TensorProfile
from undertow.plan.scheme import count_server_flops
from undertow.tools.sim.engine import make_bulk

if TYPE_CHECKING:
    from undertow.tools.sim.delivery import EngineDelivery


class VirtualExchange:
    """Syncer whose results go to all workers: dense slices, or each worker's factors or rows, of `peer_bytes`."""

    def __init__(self, members: Sequence[int], slices: Sequence[Slice], peer_bytes: float | None = None) -> None:
        self.members = members  # tensors that are sent together
        self.answers = len(slices)  # after which all results are here
        self._is_dense = peer_bytes is None
        chunk_bytes = None if peer_bytes is None else max(1, round(peer_bytes / len(slices)))
        self._keys = [(item.spec.key, make_bulk(chunk_bytes or item.spec.size_bytes)) for item in slices]

    def send(self, sender: EngineDelivery, priority: int, on_result: Callable[[Contribution], None]) -> None:
        sender.contribute(
            [
                Contribution(key, bulk, bulk if self._is_dense else None, 1, on_result, priority)
                for key, bulk in self._keys
            ]
        )


class VirtualFactorsToShard:
    """Syncer that sends factors to the shards, which multiply them and send their rows to all workers."""

    def __init__(
        self, index: int, tensor: TensorProfile, slices: Sequence[Slice], cluster: Cluster, owners: Sequence[int]
    ) -> None:
        self.members = (index,)
        height, self._depth = tensor.shape
        self._rows_bytes = tensor.rows * tensor.row_itemsize  # of one column
        self._shards = find_shards(slices, height, owners)
        self.answers = sum(len(shard.slices) for shard in self._shards)
        self._workers = cluster.workers
        flops = count_server_flops(tensor, workers=cluster.workers, servers=cluster.servers)
        self._product_s = flops / cluster.shard_flops_per_s

    def send(self, sender: EngineDelivery, priority: int, on_result: Callable[[Contribution], None]) -> None:
        order = sorted(self._shards, key=lambda shard: (shard.rank - sender.rank) % self._workers)
        for shard in order:
            if shard.rank != sender.rank:  # it sends its rows without a request
                sender.contribute(
                    [
                        Contribution(item.spec.key, None, make_bulk(item.spec.size_bytes), 0, on_result, priority)
                        for item in shard.slices
                    ]
                )
        for shard in order:
            self._send_factors(sender, shard, priority, on_result)

    def _send_factors(
        self, sender: EngineDelivery, shard: ShardRows, priority: int, on_result: Callable[[Contribution], None]
    ) -> None:
        chunks = len(shard.keys) - 1
        activations = make_bulk(max(1, round(self._rows_bytes * self._depth / chunks)))
        columns = make_bulk(max(1, round(self._rows_bytes * len(shard.rows))))
        left = len(shard.keys)

        def publish() -> None:
            sender.contribute(
                [
                    Contribution(item.spec.key, make_bulk(item.spec.size_bytes), None, 1, on_result, priority)
                    for item in shard.slices
                ]
            )

        def arrived(contribution: Contribution) -> None:
            nonlocal left
            left -= 1
            if not left and shard.rank == sender.rank:
                sender.multiply(self._product_s, publish)

        pieces = zip(shard.keys, [activations] * chunks + [columns], strict=True)
        sender.contribute([Contribution(key, bulk, None, 1, arrived, priority) for key, bulk in pieces])


VirtualSyncer = VirtualExchange | VirtualFactorsToShard


def make_syncers(
    tensors: Sequence[TensorProfile],
    slices: Sequence[Slice],
    peer_bytes: Mapping[str, float],
    cluster: Cluster,
    owners: Sequence[int],
) -> list[VirtualSyncer]:
    """Return a syncer for every tensor or fused slice; tensors are numbered in the order in which they were cut."""
    own: dict[int, list[Slice]] = {}
    syncers: list[VirtualSyncer] = []
    for item in slices:
        if item.is_fused:
            syncers.append(VirtualExchange([part.tensor for part in item.ranges], [item]))
        else:
            own.setdefault(item.ranges[0].tensor, []).append(item)
    for index, items in own.items():
        tensor = tensors[index]
        if items[0].spec.op is not Op.GATHER:
            syncers.append(VirtualExchange([index], items))
        elif items[0].spec.owner == EVERYONE:
            syncers.append(VirtualExchange([index], items, peer_bytes[tensor.name]))
        else:
            syncers.append(VirtualFactorsToShard(index, tensor, items, cluster, owners))
    return syncers
