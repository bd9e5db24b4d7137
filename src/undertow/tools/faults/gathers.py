"""Contributions of a worker to rounds without a sum: bytes that are gathered, and rows that a shard publishes.

Gathered bytes have any length, including none.  A shard that has all workers' bytes of a tensor makes rows from them in
its helper thread, and all workers receive the rows without a request (the scheme `factors-to-shard`, see
`sync.factors_to_shard`).
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import EVERYONE, Array, KeySpec, Op
from undertow.engine.core.slicing import Slice
from undertow.engine.server.gathering import RankBytes
from undertow.tools.faults.cluster import Cluster
from undertow.tools.faults.sums import Contributor
from undertow.tools.faults.worker import Script

FIRST_KEY = 1000  # far from those of the sums


def draw_gathered(cluster: Cluster) -> list[Slice]:
    """Draw keys whose bytes go to all workers, or to one."""
    shards = [cluster.random.choice([EVERYONE, *range(cluster.size)]) for _ in range(cluster.random.randint(1, 3))]
    return [Slice(KeySpec(key, 0, DType.BYTES, Op.GATHER, shard), ()) for key, shard in enumerate(shards, FIRST_KEY)]


def draw_published(cluster: Cluster) -> list[Slice]:
    """Draw one tensor in factors: for each shard some gathered keys, and the rows that it makes from them."""
    slices: list[Slice] = []
    for shard in range(cluster.size):
        first = FIRST_KEY + 500 + 10 * shard
        for key in range(first, first + cluster.random.randint(1, 2)):
            slices.append(Slice(KeySpec(key, 0, DType.BYTES, Op.GATHER, shard), ()))
        elements = cluster.slice_bytes // 4
        for key in range(first + 5, first + 5 + cluster.random.randint(1, 2)):
            spec = KeySpec(key, elements, DType.FLOAT32, Op.MEAN, shard, is_published=True)
            slices.append(Slice(spec, ()))
    return slices


def draw_rank_bytes(cluster: Cluster, key: int, step: int, rank: int) -> tuple[Array | None, int]:
    """Return this rank's contribution: bytes of any length, or none at all, and a number."""
    data, present = _draw_bytes(f"{cluster.seed}/{cluster.job}/{key}/{step}/{rank}", cluster.slice_bytes)
    return (np.frombuffer(data, np.uint8).copy() if data else None), present


@functools.lru_cache(4096)
def _draw_bytes(name: str, slice_bytes: int) -> tuple[bytes, int]:
    pick = random.Random(name)
    return pick.randbytes(pick.choice([0, 0, 1, 40, slice_bytes, 3 * slice_bytes])), pick.randrange(1 << 63)


class Gatherer(Contributor):
    """Contributions of one worker to gathered keys."""

    def __init__(self, cluster: Cluster, rank: int, gathered: Sequence[Slice]) -> None:
        super().__init__(cluster, rank)
        self.answers = 0
        self._specs = [item.spec for item in gathered]
        invariants = cluster.invariants
        invariants.most_in_flight_bytes = max(invariants.most_in_flight_bytes, 3 * cluster.slice_bytes)

    def contribute(self, step: int) -> Script:
        for spec in self.cluster.random.sample(self._specs, len(self._specs)):
            self._push(spec, step)
            yield from self.worker.pause()

    def _push(self, spec: KeySpec, step: int) -> None:
        source, present = draw_rank_bytes(self.cluster, spec.key, step, self.rank)

        def look(done: Contribution) -> None:
            self.answers += 1
            self._check_gathered(spec, step, done.gathered)
            self.arrived(spec, step, done.gathered)
            self._release(done.gathered)

        item = Contribution(spec.key, source, None, present, look, priority=self.cluster.random.randint(0, 3))
        self.post([item], f"the bytes of key {spec.key} step {step}")

    def arrived(self, spec: KeySpec, step: int, gathered: Sequence[Any]) -> None:
        """Handle the bytes of all ranks, which have been checked."""

    def _check_gathered(self, spec: KeySpec, step: int, gathered: Sequence[Any]) -> None:
        wanted = self.cluster.size if spec.owner in (EVERYONE, self.rank) else 0
        self.cluster.check(len(gathered) == wanted, f"gathered: {len(gathered)} of key {spec.key} instead of {wanted}")
        for rank, (array, number) in enumerate(gathered):
            expected, expected_number = draw_rank_bytes(self.cluster, spec.key, step, rank)
            is_same = _bytes(array) == _bytes(expected) and (array is None) == (expected is None)
            if not is_same or number != expected_number:
                name = f"gathered: rank {self.rank} key {spec.key} step {step}: the bytes of rank {rank}"
                self.cluster.fail(f"{name} is {array} {number}")

    def _release(self, gathered: Sequence[RankBytes]) -> None:
        """Overwrite and release the other ranks' bytes, whose memory will be reused."""
        others = [one for rank, one in enumerate(gathered) if rank != self.rank]
        for array, _ in others:
            if array is not None:
                array[:] = 7
        self.worker.group.release(others)


class Publisher(Gatherer):
    """Contributions of one worker to the scheme `factors-to-shard`: it awaits rows, sends factors, publishes rows."""

    def __init__(self, cluster: Cluster, rank: int, published: Sequence[Slice]) -> None:
        super().__init__(cluster, rank, [item for item in published if item.spec.op is Op.GATHER])
        self._rows = [item.spec for item in published if item.spec.op is not Op.GATHER]
        self._arrived: dict[int, int] = {}  # checksums of the gathered bytes, by key of its own shard

    def contribute(self, step: int) -> Script:
        self._arrived = {}
        self._await_rows(step, [spec for spec in self._rows if spec.owner != self.rank])
        yield from super().contribute(step)

    def arrived(self, spec: KeySpec, step: int, gathered: Sequence[Any]) -> None:
        if spec.owner != self.rank:
            return
        self._arrived[spec.key] = _sum_up(gathered)
        if len(self._arrived) == sum(other.owner == self.rank for other in self._specs):
            own = [other for other in self._rows if other.owner == self.rank]
            total = _join(self._arrived)
            self.worker.group.aside(lambda: self._await_rows(step, own, total))

    def _await_rows(self, step: int, rows: Sequence[KeySpec], made: int | None = None) -> None:
        items = [self._await_one(spec, step, made) for spec in rows]
        if items:
            self.post(items, f"rows of step {step}")

    def _await_one(self, spec: KeySpec, step: int, made: int | None) -> Contribution:
        target = np.full(spec.elements, -1, np.float32)
        source = None if made is None else np.full(spec.elements, made, np.float32)
        keys = [other.key for other in self._specs if other.owner == spec.owner]
        total = _join({key: self._expected(key, step) for key in keys})

        def look(done: Contribution) -> None:
            if not (target == np.float32(total)).all() or done.present != 1:
                name = f"sum: rank {self.rank} key {spec.key} step {step}: rows"
                self.cluster.fail(f"{name} {target}, expected {total}")

        return Contribution(spec.key, source, target, int(made is not None), look)

    def _expected(self, key: int, step: int) -> int:
        return _sum_up([draw_rank_bytes(self.cluster, key, step, rank) for rank in range(self.cluster.size)])


def _bytes(array: Array | None) -> bytes:
    return b"" if array is None else array.tobytes()


def _sum_up(gathered: Sequence[Any]) -> int:
    checksum = 0
    for array, number in gathered:
        checksum = zlib.crc32(_bytes(array), zlib.crc32(str(number).encode(), checksum))
    return checksum


def _join(checksums: dict[int, int]) -> int:
    """Return a number that a float32 holds exactly."""
    return sum(checksums.values()) % (1 << 20)
