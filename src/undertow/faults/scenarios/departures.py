"""Workers that only train and leave, in order or not: nobody hangs, and all name the same cause."""

from __future__ import annotations

from undertow.faults.case import Case
from undertow.faults.cluster import Cluster
from undertow.faults.network import draw_prefix
from undertow.faults.sums import Summer
from undertow.faults.tables import Table, check_all_answered, make_tables
from undertow.faults.worker import Script, Worker

ENDLESS = 10**6  # steps


def run_orderly(case: Case) -> None:
    """When all leave in order nobody complains."""
    cluster = Cluster(case)
    tables = make_tables(cluster)
    train_and_leave(cluster, tables, [cluster.random.randint(0, 3)] * cluster.size)
    cluster.run()
    check_all_done(cluster, tables)


def run_early(case: Case) -> None:
    """A worker that leaves in order, but too early, is named by all others."""
    cluster = Cluster(case, fewest_workers=2)
    tables = make_work(cluster)
    culprit, steps = case.dice.randrange(cluster.size), case.dice.randint(1, 3)
    ends = [steps] * cluster.size
    ends[culprit] = case.dice.randrange(steps)
    cluster.invariants.may_be_named = {culprit}
    train_and_leave(cluster, tables, ends)
    cluster.run()
    early = cluster.workers[culprit]
    cluster.check(early.is_done, f"rank {culprit} left in order and hears {early.failure}")
    check_all_name(cluster, {culprit})


def run_endless(case: Case) -> None:
    """In a job without end everybody hears of a death or a cut, and nobody is done before."""
    cluster, dice = Cluster(case, fewest_workers=3), case.dice
    train_and_leave(cluster, make_work(cluster), [ENDLESS] * cluster.size)
    one, other = dice.sample(range(cluster.size), 2)
    is_death = dice.random() < 0.5
    if is_death:
        cluster.plan(dice.randint(1, 200), lambda: cluster.kill(one, draw_prefix(dice)))
    else:
        cluster.plan(dice.randint(1, 200), lambda: cluster.cut(one, other, draw_prefix(dice)))
    cluster.run()
    check_all_name(cluster, {one} if is_death else {one, other})


def make_work(cluster: Cluster) -> list[Table]:
    """Tables with something to wait for."""
    while True:
        tables = make_tables(cluster)
        if any(table.slices for table in tables):
            return tables


def train_and_leave(cluster: Cluster, tables: list[Table], steps: list[int]) -> None:
    """Every rank its own number of steps, although all take part in the longest."""

    def script(worker: Worker) -> Script:
        training = Summer(cluster, worker.rank, tables).train(0, steps[worker.rank], [max(steps)] * cluster.size)
        yield from worker.train(training)
        yield from worker.leave(str(worker.failure or ""))

    for worker in cluster.workers:
        cluster.start(worker.rank, script(worker))


def check_all_done(cluster: Cluster, tables: list[Table]) -> None:
    check_all_answered(cluster, tables)
    for worker in cluster.workers:
        cluster.check(worker.is_done, f"rank {worker.rank} ended with {worker.failure!r}")


def check_all_name(cluster: Cluster, culprits: set[int]) -> None:
    """Whoever still runs, but for one that left too early, has named one of these."""
    for worker in cluster.workers:
        if worker.is_running and not worker.is_done:
            named = cluster.invariants.find_named(worker.failure)
            claim = f"rank {worker.rank} does not name {culprits}, but ended with {worker.failure!r}"
            cluster.check(named in culprits, claim)
        elif worker.is_running:
            cluster.check(worker.rank in culprits, f"rank {worker.rank} was done, but nobody can be")
