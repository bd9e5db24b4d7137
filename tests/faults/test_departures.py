"""Workers that leave, in order or not: nobody hangs, and all name the same cause."""

from __future__ import annotations

from tests.faults.cluster import Cluster, Script
from tests.faults.workload import Rank, Table, check_all_answered, random_tables
from undertow.errors import PeerLost

SEEDS = 80


def start_all(cluster: Cluster, tables: list[Table], steps: list[int]) -> dict[int, Exception | None]:
    """All train and leave; the error that ended each rank's training is found here afterwards."""
    failures: dict[int, Exception | None] = {}

    def script(rank: int) -> Script:
        worker = Rank(cluster, rank, tables)
        yield from worker.train(0, steps[rank], [max(steps)] * cluster.size)
        failures[rank] = worker.group.waiters.error
        yield from cluster.leave(rank, str(failures[rank] or ""))

    for rank in range(cluster.size):
        cluster.start(rank, script(rank))
    return failures


def check_all_name(cluster: Cluster, culprit: int, failures: dict[int, Exception | None]) -> None:
    for rank in set(range(cluster.size)) - {culprit}:
        failure = failures[rank]
        cluster.check(isinstance(failure, PeerLost), f"rank {rank} ended with {failure!r}")
        cluster.check(f"rank {culprit} on host host{culprit} was lost" in str(failure), f"rank {rank} says {failure}")
        cluster.check(f"this is rank {rank} at step" in str(failure), f"rank {rank} says {failure}")


def test_when_all_leave_in_order_nobody_complains(seed: int) -> None:
    cluster = Cluster(seed)
    tables = random_tables(cluster, most=2)
    failures = start_all(cluster, tables, [cluster.random.randint(0, 3)] * cluster.size)
    cluster.run()
    check_all_answered(cluster, tables)
    cluster.check(set(failures.values()) == {None}, f"errors: {failures}")
    for group in cluster.groups:
        cluster.check(not group.dropped, f"rank {group.rank} dropped {dict(group.dropped)}")


def test_a_worker_that_leaves_too_early_is_named_by_all_others(seed: int) -> None:
    cluster = Cluster(seed, fewest_workers=2)
    tables = random_tables(cluster, most=2)
    culprit, steps = cluster.random.randrange(cluster.size), cluster.random.randint(1, 3)
    if not any(table.slices for table in tables):
        return  # nothing to wait for
    ends = [steps] * cluster.size
    ends[culprit] = cluster.random.randrange(steps)
    failures = start_all(cluster, tables, ends)
    cluster.run()
    cluster.check(failures[culprit] is None, f"rank {culprit} left in order and hears {failures[culprit]}")
    check_all_name(cluster, culprit, failures)


def test_a_killed_worker_is_named_by_all_others(seed: int) -> None:
    cluster = Cluster(seed, fewest_workers=2)
    tables = random_tables(cluster, most=2)
    culprit = cluster.random.randrange(cluster.size)
    failures = start_all(cluster, tables, [10**6 if any(table.slices for table in tables) else 0] * cluster.size)
    events = cluster.random.randint(1, 400)
    cluster.run(until=lambda: len(cluster.story) > events or not cluster.scripts)
    if not cluster.scripts:
        return
    cluster.kill(culprit)
    cluster.run()
    check_all_name(cluster, culprit, failures)


def test_a_cut_link_ends_the_job_everywhere(seed: int) -> None:
    cluster = Cluster(seed, fewest_workers=3)
    tables = random_tables(cluster, most=2)
    if not any(table.slices for table in tables):
        return
    one, other = cluster.random.sample(range(cluster.size), 2)
    failures = start_all(cluster, tables, [10**6] * cluster.size)
    events = cluster.random.randint(1, 400)
    cluster.run(until=lambda: len(cluster.story) > events)
    cluster.network.cut(one, other)
    cluster.run()
    for rank, failure in failures.items():
        cluster.check(isinstance(failure, PeerLost), f"rank {rank} ended with {failure!r}")
        named = any(f"rank {end} on host host{end} was lost" in str(failure) for end in (one, other))
        cluster.check(named, f"rank {rank} says {failure}")
