"""Workers that run out of input: the others go on without them, and then all go on together."""

from __future__ import annotations

import msgspec

from tests.faults.cluster import Cluster, Script
from tests.faults.workload import Rank, Table, check_all_answered, random_tables

SEEDS = 120


def uneven(cluster: Cluster, rank: int, tables: list[Table], epochs: list[list[int]]) -> Script:
    """Each epoch has every rank's number of rounds; in between all meet, as `join()` does."""
    worker, first = Rank(cluster, rank, tables), 0
    for epoch, rounds in enumerate(epochs):
        worker.by_active = bool((cluster.seed + epoch) % 2)
        ends = [first + count for count in rounds]
        yield from worker.train(first, ends[rank], ends)
        for table in tables:
            worker.group.join(table.slices, divide_by_active=worker.by_active)
        own = [worker.group.rounds_done(table.slices) for table in tables]
        yield from cluster.agree(rank, "join", msgspec.msgpack.encode(own))
        _, steps, _ = msgspec.msgpack.decode(cluster.agreed(rank), type=tuple[int, list[int], bool])
        for table, step in zip(tables, steps, strict=True):
            worker.group.resume(table.slices, step)
        yield from cluster.agree(rank, "barrier")
        first = max(ends)


def test_rounds_go_on_without_those_who_joined_and_with_them_afterwards(seed: int) -> None:
    cluster = Cluster(seed)
    tables = random_tables(cluster, most=2)
    epochs = [[cluster.random.randint(0, 3) for _ in range(cluster.size)] for _ in range(3)]
    for rank in range(cluster.size):
        cluster.start(rank, uneven(cluster, rank, tables, epochs))
    cluster.run()
    check_all_answered(cluster, tables)
    for group in cluster.groups:
        cluster.check(group.waiters.error is None, f"rank {group.rank} failed")
        cluster.check(not group.dropped, f"rank {group.rank} dropped {dict(group.dropped)}")
