"""Whole job, from the first agreement to the last goodbye, so that a fault can hit every step of the protocol.

The ranks agree on tables, train with sums, gathered bytes and rows, pull the kept values, run out of input at different
times and resume together, compare digests, and leave.
"""

from __future__ import annotations

import msgspec

from undertow.engine.coordinator.agreement import LATEST
from undertow.tools.faults.cluster import Cluster
from undertow.tools.faults.event_log import Case
from undertow.tools.faults.gathers import Gatherer, Publisher, draw_gathered, draw_published
from undertow.tools.faults.sums import Summer, Table, check_all_done, draw_tables
from undertow.tools.faults.worker import Script, Worker


class WholeJob:
    """Scripts of all workers, drawn from the cluster's own dice.

    Runs of one seed with and without a fault are equal up to the event of the fault.
    """

    def __init__(self, cluster: Cluster) -> None:
        pick = cluster.random
        self.cluster = cluster
        self.tables = draw_tables(cluster, most_tensors=2)
        self._gathered = draw_gathered(cluster) if pick.random() < 0.5 else []
        self._published = draw_published(cluster) if pick.random() < 0.4 else []
        self._steps = pick.randint(1, 2)
        self._uneven = [pick.randint(0, 2) for _ in range(cluster.size)] if pick.random() < 0.4 else []
        sends_error = pick.random() < 0.5
        cluster.start_all(lambda worker: worker.run(self._train(worker), sends_error=sends_error))

    def _train(self, worker: Worker) -> Script:
        yield from self._register(worker)
        summer = Summer(self.cluster, worker.rank, self.tables)
        yield from self._sum_and_gather(worker, summer)
        yield from summer.pull(self._steps)
        if self._uneven:
            yield from join(summer, self.tables, self._steps, self._uneven)
        digest: list[tuple[str, bytes]] = [("weight", b"the same")]
        differing = yield from worker.agree("digest", msgspec.msgpack.encode(digest))
        self.cluster.check(not differing, f"rank {worker.rank} finds drift: {differing!r}")

    def _register(self, worker: Worker) -> Script:
        for table in self.tables:
            slices = yield from worker.register(table.tensors, op=table.op, keep=table.keep)
            self.cluster.check(table.slices in ([], slices), f"rank {worker.rank} cuts other slices")
            table.slices = slices
        worker.group.learn([*self._gathered, *self._published])
        yield from worker.agree("barrier")

    def _sum_and_gather(self, worker: Worker, summer: Summer) -> Script:
        gatherer = Gatherer(self.cluster, worker.rank, self._gathered)
        publisher = Publisher(self.cluster, worker.rank, self._published)
        for step in range(self._steps):
            yield from publisher.contribute(step)
            yield from gatherer.contribute(step)
            yield from summer.train(step, step + 1)
            yield from publisher.wait()
        yield from gatherer.wait()

    def check_all_well(self) -> None:
        check_all_done(self.cluster, self.tables)
        check_quiet(self.cluster)


def join(summer: Summer, tables: list[Table], first: int, rounds: list[int]) -> Script:
    """Train each rank's number of rounds, starting with `first`; then all resume together, as after `join()`."""
    worker = summer.worker
    ends = [first + count for count in rounds]
    yield from summer.train(first, ends[summer.rank], ends)
    for table in tables:
        worker.group.uneven.leave(table.slices, divide_by_active=summer.by_active)
    own = [worker.group.uneven.rounds_done(table.slices) for table in tables]
    payload = yield from worker.agree("join", msgspec.msgpack.encode(own))
    _, steps, _ = LATEST.decode(payload)
    for table, step in zip(tables, steps, strict=True):
        worker.group.uneven.resume(table.slices, step)
    yield from worker.agree("barrier")


def check_named(cluster: Cluster, culprits: set[int]) -> None:
    """Check that every worker that has not finished its training names one of these."""
    for worker in cluster.workers:
        named = cluster.invariants.find_named(worker.failure)
        is_well = worker.is_done or not worker.is_running or named in culprits
        cluster.check(is_well, f"rank {worker.rank} ended with {worker.failure!r}, not naming {culprits}")


def check_quiet(cluster: Cluster) -> None:
    """Check that no worker waits for a result or has frames left to send."""
    for worker in cluster.workers:
        pending = worker.exchange.pending()
        cluster.check(pending is None, f"rank {worker.rank} still waits for {pending}")
        cluster.check(worker.exchange.is_drained, f"rank {worker.rank} still sends")


def rehearse(case: Case, *, fewest_workers: int) -> int:
    """Return the number of events of this case's whole job without a fault, and check that it goes well."""
    cluster = Cluster(case, fewest_workers=fewest_workers)
    whole_job = WholeJob(cluster)
    cluster.run()
    whole_job.check_all_well()
    case.log.begin_again()
    return cluster.events
