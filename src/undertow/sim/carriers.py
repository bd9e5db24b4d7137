"""Stages 3 and 8 without a framework: what carries gradients in a pass, and when it leaves.

In: slices, as the real slicer has cut them, and the plan's schemes.  Out: contributions to a worker's engine.
The same as `undertow.torch.carriers`, `gathered` and `sharded`, of which only the sizes matter here; one set of them
serves all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from undertow.core.flow import Contribution
from undertow.core.rounds import EVERYONE, Op
from undertow.plan.cluster import Cluster
from undertow.plan.profile import TensorProfile
from undertow.plan.scheme import count_product_flops
from undertow.plan.slicing import Slice, split_rows
from undertow.sim.bulk import make_bulk


class Sender(Protocol):
    """The worker, as a carrier sees it."""

    rank: int

    def contribute(self, contributions: Sequence[Contribution]) -> None: ...

    def multiply(self, seconds: float, then: Callable[[], None]) -> None:
        """At its shard, beside engine and training, one product after the other."""


class Carrier(Protocol):
    @property
    def members(self) -> Sequence[int]:
        """Tensors, which come together."""

    @property
    def answers(self) -> int:
        """How many there are before all results are there."""

    def send(self, sender: Sender, priority: int, on_result: Callable[[Contribution], None]) -> None:
        """All members are ready."""


class Summed:
    """A gradient in slices of its own, or several in one slice."""

    def __init__(self, members: Sequence[int], slices: Sequence[Slice]) -> None:
        self.members = members
        self.answers = len(slices)
        self._keys = [(item.spec.key, make_bulk(item.spec.size_bytes)) for item in slices]

    def send(self, sender: Sender, priority: int, on_result: Callable[[Contribution], None]) -> None:
        sender.contribute([Contribution(key, bulk, bulk, 1, on_result, priority) for key, bulk in self._keys])


class Gathered:
    """Everybody's parts to everybody."""

    def __init__(self, tensor: int, slices: Sequence[Slice], piece_bytes: float) -> None:
        self.members = (tensor,)
        self.answers = len(slices)
        chunk = make_bulk(max(1, round(piece_bytes / len(slices))))
        self._keys = [(item.spec.key, chunk) for item in slices]

    def send(self, sender: Sender, priority: int, on_result: Callable[[Contribution], None]) -> None:
        sender.contribute([Contribution(key, chunk, None, 1, on_result, priority) for key, chunk in self._keys])


class _Rows:
    """What goes to one shard, and the rows that it makes of it."""

    def __init__(self, rank: int, rows: range) -> None:
        self.rank = rank
        self.rows = rows
        self.keys: list[int] = []  # of the activations, in chunks; then of its own columns of the deltas
        self.slices: list[Slice] = []


class Sharded:
    """The factors to the shards, which multiply; their rows to everybody."""

    def __init__(self, index: int, tensor: TensorProfile, slices: Sequence[Slice], cluster: Cluster) -> None:
        self.members = (index,)
        height, self._depth = tensor.shape
        self._rows_bytes = tensor.rows * tensor.row_itemsize  # of one column
        self._shards = {
            rank: _Rows(rank, rows) for rank, rows in enumerate(split_rows(height, cluster.workers)) if rows
        }
        for item in slices:
            shard = self._shards[item.spec.shard]
            if item.spec.op is Op.GATHER:
                shard.keys.append(item.spec.key)
            else:
                shard.slices.append(item)
        self.answers = sum(len(shard.slices) for shard in self._shards.values())
        self._workers = cluster.workers
        # Each shard makes its part of the rows out of everybody's factors: as much as one product in all.
        self._product_s = count_product_flops(tensor) / cluster.shard_flops_per_s

    def send(self, sender: Sender, priority: int, on_result: Callable[[Contribution], None]) -> None:
        order = sorted(self._shards.values(), key=lambda shard: (shard.rank - sender.rank) % self._workers)
        for shard in order:
            if shard.rank != sender.rank:  # its rows will come unasked
                sender.contribute(
                    [
                        Contribution(item.spec.key, None, make_bulk(item.spec.size_bytes), 0, on_result, priority)
                        for item in shard.slices
                    ]
                )
        for shard in order:
            self._send_factors(sender, shard, priority, on_result)

    def _send_factors(
        self, sender: Sender, shard: _Rows, priority: int, on_result: Callable[[Contribution], None]
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


def make_carriers(
    tensors: Sequence[TensorProfile],
    slices: Sequence[Slice],
    piece_bytes: Mapping[str, float],
    cluster: Cluster,
) -> list[Carrier]:
    """For tensors in the order in which they were cut."""
    own: dict[int, list[Slice]] = {}
    carriers: list[Carrier] = []
    for item in slices:
        if item.is_fused:
            carriers.append(Summed([part.tensor for part in item.parts], [item]))
        else:
            own.setdefault(item.parts[0].tensor, []).append(item)
    for index, items in own.items():
        tensor = tensors[index]
        if items[0].spec.op is not Op.GATHER:
            carriers.append(Summed([index], items))
        elif items[0].spec.shard == EVERYONE:
            carriers.append(Gathered(index, items, piece_bytes[tensor.name]))
        else:
            carriers.append(Sharded(index, tensor, items, cluster))
    return carriers
