"""Whatever order links deliver in, every rank gets the bits of the plain sum in rank order."""

from __future__ import annotations

from tests.faults.cluster import Cluster, Script
from tests.faults.workload import Rank, Table, check_all_answered, random_tables


def run_training(cluster: Cluster, tables: list[Table], steps: int) -> None:
    def script(rank: int) -> Script:
        worker = Rank(cluster, rank, tables)
        yield from worker.train(0, steps)
        yield from worker.pull(steps)

    for rank in range(cluster.size):
        cluster.start(rank, script(rank))
    cluster.run()


def test_every_schedule_gives_the_bits_of_the_plain_sum(seed: int) -> None:
    check_training(Cluster(seed))


def test_credit_that_changes_at_any_time_never_runs_dry(seed: int) -> None:
    cluster = Cluster(seed, fewest_workers=2)
    cluster.changes_credit = True
    check_training(cluster)


def check_training(cluster: Cluster) -> None:
    tables = random_tables(cluster)
    run_training(cluster, tables, cluster.random.randint(1, 4))
    check_all_answered(cluster, tables)
    for group in cluster.groups:
        cluster.check(group.waiters.error is None, f"rank {group.rank} failed")
        cluster.check(not group.dropped, f"rank {group.rank} dropped {dict(group.dropped)}")
        cluster.check(group._exchange.pending() is None, f"rank {group.rank} still waits")
        cluster.check(group._exchange.is_drained, f"rank {group.rank} still sends")
