"""Runs without faults in which everything may take any time: sums have the bits of a plain loop."""

from __future__ import annotations

from undertow.tools.faults.cluster import Cluster
from undertow.tools.faults.event_log import Case
from undertow.tools.faults.gathers import Gatherer, draw_gathered
from undertow.tools.faults.sums import Summer, Table, check_all_done, make_tables
from undertow.tools.faults.whole_job import check_quiet, join
from undertow.tools.faults.worker import Script


def run_schedule(case: Case) -> None:
    """Check that any order of deliveries of different links gives the bits of the plain sum in rank order."""
    _train(Cluster(case))


def run_credit(case: Case) -> None:
    """Check that credit that changes at any time never runs dry."""
    cluster = Cluster(case, fewest_workers=2)
    cluster.change_credit()
    _train(cluster)


def _train(cluster: Cluster) -> None:
    cluster.asks_who_is_missing = True
    tables, steps = make_tables(cluster), cluster.random.randint(1, 3)

    def script(rank: int) -> Script:
        summer = Summer(cluster, rank, tables)
        yield from summer.train(0, steps)
        yield from summer.pull(steps)

    cluster.start_all(lambda worker: worker.train(script(worker.rank)))
    cluster.run()
    _check(cluster, tables)


def run_gathering(case: Case) -> None:
    """Check that gathered bytes of any length reach their receivers in rank order, along with sums."""
    cluster = Cluster(case, fewest_workers=2)
    if case.dice.random() < 0.3:
        cluster.change_credit()
    tables, gathered, steps = make_tables(cluster, most=1), draw_gathered(cluster), cluster.random.randint(1, 4)
    gatherers = [Gatherer(cluster, rank, gathered) for rank in range(cluster.size)]

    def script(rank: int) -> Script:
        summer = Summer(cluster, rank, tables)
        for step in range(steps):
            yield from gatherers[rank].contribute(step)
            yield from summer.train(step, step + 1)
            if cluster.random.random() < 0.5:
                yield from gatherers[rank].wait()
        yield from gatherers[rank].wait()

    for worker in cluster.workers:
        worker.exchange.learn(gathered)
    cluster.start_all(lambda worker: worker.train(script(worker.rank)))
    cluster.run()
    for gatherer in gatherers:
        wanted = steps * len(gathered)
        cluster.check(gatherer.answers == wanted, f"rank {gatherer.rank}: {gatherer.answers} answers of {wanted}")
    _check(cluster, tables)


def run_join(case: Case) -> None:
    """Check that rounds continue without ranks that have run out of input, and with them afterwards."""
    cluster = Cluster(case)
    tables = make_tables(cluster)
    epochs = [[cluster.random.randint(0, 2) for _ in range(cluster.size)] for _ in range(3)]

    def script(rank: int) -> Script:
        summer, first = Summer(cluster, rank, tables), 0
        for epoch, rounds in enumerate(epochs):
            summer.by_active = bool((case.seed + epoch) % 2)
            yield from join(summer, tables, first, rounds)
            first += max(rounds)

    cluster.start_all(lambda worker: worker.train(script(worker.rank)))
    cluster.run()
    _check(cluster, tables)


def _check(cluster: Cluster, tables: list[Table]) -> None:
    check_all_done(cluster, tables)
    check_quiet(cluster)
