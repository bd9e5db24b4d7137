"""One worker's part in rounds without a sum: pieces that are gathered, and rows that a shard publishes.

Pieces are of any length, also none.  A shard that has everybody's pieces of a tensor makes some rows of it, beside
engine and training, and everybody gets them unasked (the scheme `factors-to-shard`, see torch.sharded).
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from undertow.core.dtypes import DType
from undertow.core.flow import Contribution
from undertow.core.rounds import EVERYONE, Array, KeySpec, Op
from undertow.faults.cluster import Cluster
from undertow.faults.sums import Asker
from undertow.faults.worker import Script
from undertow.plan.slicing import Slice
from undertow.store.gathering import Piece

FIRST_KEY = 1000  # far from those of the sums


def draw_gathered(cluster: Cluster) -> list[Slice]:
    """Keys whose pieces everybody gets, or one worker."""
    shards = [cluster.random.choice([EVERYONE, *range(cluster.size)]) for _ in range(cluster.random.randint(1, 3))]
    return [Slice(KeySpec(key, 0, DType.BYTES, Op.GATHER, shard), ()) for key, shard in enumerate(shards, FIRST_KEY)]


def draw_published(cluster: Cluster) -> list[Slice]:
    """One tensor in factors: of each shard some keys of pieces, and the rows that it makes of them."""
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


def piece(cluster: Cluster, key: int, step: int, rank: int) -> tuple[Array | None, int]:
    """What this rank contributes: bytes of a length of its own, or none at all, and a number."""
    data, present = _draw_piece(f"{cluster.seed}/{cluster.job}/{key}/{step}/{rank}", cluster.slice_bytes)
    return (np.frombuffer(data, np.uint8).copy() if data else None), present


@functools.lru_cache(4096)
def _draw_piece(name: str, slice_bytes: int) -> tuple[bytes, int]:
    pick = random.Random(name)
    return pick.randbytes(pick.choice([0, 0, 1, 40, slice_bytes, 3 * slice_bytes])), pick.randrange(1 << 63)


class Gatherer(Asker):
    def __init__(self, cluster: Cluster, rank: int, gathered: Sequence[Slice]) -> None:
        super().__init__(cluster, rank)
        self.answers = 0
        self._specs = [item.spec for item in gathered]
        invariants = cluster.invariants
        invariants.most_in_flight_bytes = max(invariants.most_in_flight_bytes, 3 * cluster.slice_bytes)

    def contribute(self, step: int) -> Script:
        for spec in self.cluster.random.sample(self._specs, len(self._specs)):
            self._push(spec, step)
            yield from self.worker.until("its turn", lambda: True)

    def _push(self, spec: KeySpec, step: int) -> None:
        source, present = piece(self.cluster, spec.key, step, self.rank)

        def look(done: Contribution) -> None:
            self.answers += 1
            self._check_pieces(spec, step, done.pieces)
            self.arrived(spec, step, done.pieces)
            self._release(done.pieces)

        item = Contribution(spec.key, source, None, present, look, priority=self.cluster.random.randint(0, 3))
        self.post([item], f"the piece of key {spec.key} step {step}")

    def arrived(self, spec: KeySpec, step: int, pieces: Sequence[Any]) -> None:
        """These are all of them, and right."""

    def _check_pieces(self, spec: KeySpec, step: int, pieces: Sequence[Any]) -> None:
        wanted = self.cluster.size if spec.shard in (EVERYONE, self.rank) else 0
        self.cluster.check(len(pieces) == wanted, f"pieces: {len(pieces)} of key {spec.key} instead of {wanted}")
        for rank, (array, number) in enumerate(pieces):
            expected, expected_number = piece(self.cluster, spec.key, step, rank)
            is_same = _bytes(array) == _bytes(expected) and (array is None) == (expected is None)
            if not is_same or number != expected_number:
                name = f"pieces: rank {self.rank} key {spec.key} step {step}: the piece of rank {rank}"
                self.cluster.fail(f"{name} is {array} {number}")

    def _release(self, pieces: Sequence[Piece]) -> None:
        """Others' memory is ours from now on, and lent again."""
        others = [one for rank, one in enumerate(pieces) if rank != self.rank]
        for array, _ in others:
            if array is not None:
                array[:] = 7
        self.worker.group.release(others)


class Publisher(Gatherer):
    """As torch.sharded: first let rows come, then send pieces; the own shard's rows when it has all pieces."""

    def __init__(self, cluster: Cluster, rank: int, published: Sequence[Slice]) -> None:
        super().__init__(cluster, rank, [item for item in published if item.spec.op is Op.GATHER])
        self._rows = [item.spec for item in published if item.spec.op is not Op.GATHER]
        self._arrived: dict[int, int] = {}  # key -> checksum of its pieces, for the own shard

    def contribute(self, step: int) -> Script:
        self._arrived = {}
        self._await_rows(step, [spec for spec in self._rows if spec.shard != self.rank])
        yield from super().contribute(step)

    def arrived(self, spec: KeySpec, step: int, pieces: Sequence[Any]) -> None:
        if spec.shard != self.rank:
            return
        self._arrived[spec.key] = _sum_up(pieces)
        if len(self._arrived) == sum(other.shard == self.rank for other in self._specs):
            own = [other for other in self._rows if other.shard == self.rank]
            total = _join(self._arrived)
            self.worker.group.aside(lambda: self._await_rows(step, own, total))

    def _await_rows(self, step: int, rows: Sequence[KeySpec], made: int | None = None) -> None:
        items = [self._await_one(spec, step, made) for spec in rows]
        if items:
            self.post(items, f"rows of step {step}")

    def _await_one(self, spec: KeySpec, step: int, made: int | None) -> Contribution:
        target = np.full(spec.elements, -1, np.float32)
        source = None if made is None else np.full(spec.elements, made, np.float32)
        total = _join({key: self._expected(key, step) for key in self._keys_of(spec.shard)})

        def look(done: Contribution) -> None:
            if not (target == np.float32(total)).all() or done.present != 1:
                name = f"sum: rank {self.rank} key {spec.key} step {step}: rows"
                self.cluster.fail(f"{name} {target}, expected {total}")

        return Contribution(spec.key, source, target, int(made is not None), look)

    def _keys_of(self, shard: int) -> list[int]:
        return [spec.key for spec in self._specs if spec.shard == shard]

    def _expected(self, key: int, step: int) -> int:
        return _sum_up([piece(self.cluster, key, step, rank) for rank in range(self.cluster.size)])


def _bytes(array: Array | None) -> bytes:
    return b"" if array is None else array.tobytes()


def _sum_up(pieces: Sequence[Any]) -> int:
    checksum = 0
    for array, number in pieces:
        checksum = zlib.crc32(_bytes(array), zlib.crc32(str(number).encode(), checksum))
    return checksum


def _join(checksums: dict[int, int]) -> int:
    """A number that a float32 holds exactly."""
    return sum(checksums.values()) % (1 << 20)
