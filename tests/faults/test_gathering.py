"""Whatever order links deliver in, every rank, or the one it is for, gets all pieces, of any length, in rank order."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.faults.cluster import Cluster, Script
from tests.faults.workload import Rank, Table, check_all_answered, random_tables
from undertow.core.dtypes import DType
from undertow.core.flow import Contribution
from undertow.core.rounds import EVERYONE, KeySpec, Op
from undertow.plan.slicing import Slice
from undertow.runtime.waiting import Ticket

SEEDS = 300
FIRST_KEY = 1000


def piece(cluster: Cluster, key: int, step: int, rank: int) -> tuple[Any, int]:
    """What this rank contributes: bytes of a length of its own, or none at all, and a number."""
    random = np.random.default_rng([cluster.seed, key, step, rank])
    present = int(random.integers(0, 1 << 63))
    length = int(random.choice([0, 0, 1, 40, cluster.slice_bytes, 3 * cluster.slice_bytes]))
    return (random.integers(0, 256, length).astype(np.uint8) if length else None), present


class Gatherer:
    """One worker's part in rounds of pieces, beside its part in sums."""

    def __init__(self, cluster: Cluster, rank: int, shards: dict[int, int], tables: list[Table]) -> None:
        self._cluster = cluster
        self._rank = rank
        self._shards = shards  # of each key who gets the pieces
        self._sums = Rank(cluster, rank, tables)
        self._tickets: list[Ticket] = []
        self.answers = 0

    def run(self, steps: int) -> Script:
        pick = self._cluster.random
        for step in range(steps):
            for key in pick.sample(list(self._shards), len(self._shards)):
                self._contribute(key, step)
                yield lambda: True
            yield from self._sums.train(step, step + 1)
            if pick.random() < 0.5:
                yield self.is_answered
        yield self.is_answered

    def is_answered(self) -> bool:
        group = self._cluster.groups[self._rank]
        return group.waiters.error is not None or all(ticket.is_done for ticket in self._tickets)

    def _contribute(self, key: int, step: int) -> None:
        cluster, ticket = self._cluster, Ticket(1)
        source, present = piece(cluster, key, step, self._rank)

        def check(done: Contribution) -> None:
            self.answers += 1
            wanted = cluster.size if self._shards[key] in (EVERYONE, self._rank) else 0
            cluster.check(len(done.pieces) == wanted, f"{len(done.pieces)} pieces instead of {wanted}")
            for rank, (array, number) in enumerate(done.pieces):
                expected, expected_number = piece(cluster, key, step, rank)
                same = (
                    array is None if expected is None else array is not None and array.tobytes() == expected.tobytes()
                )
                name = f"rank {self._rank} key {key} step {step}: the piece of rank {rank}"
                cluster.check(same and number == expected_number, f"{name} is {array} {number}")
            others = [one for rank, one in enumerate(done.pieces) if rank != self._rank]
            for array, _ in others:
                if array is not None:
                    array[:] = 7  # ours from now on, and lent again
            cluster.groups[self._rank].release(others)
            ticket.answer(done)

        self._tickets.append(ticket)
        item = Contribution(key, source, None, present, check, priority=cluster.random.randint(0, 3))
        cluster.groups[self._rank].contribute([item])


def test_pieces_of_any_length_reach_whom_they_are_for_in_rank_order(seed: int) -> None:
    cluster = Cluster(seed, fewest_workers=2)
    cluster.changes_credit = seed % 3 == 0
    cluster.largest_parcel_bytes = 3 * cluster.slice_bytes
    tables = random_tables(cluster, most=1)
    keys = range(FIRST_KEY, FIRST_KEY + cluster.random.randint(1, 4))
    shards = {key: cluster.random.choice([EVERYONE, *range(cluster.size)]) for key in keys}
    slices = [Slice(KeySpec(key, 0, DType.BYTES, Op.GATHER, shard), ()) for key, shard in shards.items()]
    for group in cluster.groups:
        group._exchange.learn(slices)
    steps = cluster.random.randint(1, 5)
    workers = [Gatherer(cluster, rank, shards, tables) for rank in range(cluster.size)]
    for rank, worker in enumerate(workers):
        cluster.start(rank, worker.run(steps))
    cluster.run()
    check_all_answered(cluster, tables)
    for group, worker in zip(cluster.groups, workers, strict=True):
        cluster.check(worker.answers == steps * len(keys), f"rank {group.rank}: {worker.answers} answers")
        cluster.check(not group.dropped, f"rank {group.rank} dropped {dict(group.dropped)}")
        cluster.check(group._exchange.is_drained, f"rank {group.rank} still sends")
