"""A whole job, from the first agreement to the last goodbye, so that a fault can hit every step of the protocol.

Acts: agree on tables, train with sums, pieces and rows, run out of input at different times and go on together,
pull what is kept, compare digests, leave.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from undertow.coordinator.agreement import decode_latest
from undertow.faults.cluster import Cluster
from undertow.faults.pieces import Gatherer, Publisher, draw_gathered, draw_published
from undertow.faults.sums import Summer
from undertow.faults.tables import Table, check_all_answered, draw_tables
from undertow.faults.worker import Script, Worker


class Life:
    """The scripts of all workers.  Everything in it is drawn from the cluster's own dice: the same seed gives the
    same run up to the event of a fault."""

    def __init__(self, cluster: Cluster) -> None:
        pick = cluster.random
        self.cluster = cluster
        self.tables = draw_tables(cluster, most_tensors=2)
        self._gathered = draw_gathered(cluster) if pick.random() < 0.5 else []
        self._published = draw_published(cluster) if pick.random() < 0.4 else []
        self._steps = pick.randint(1, 2)
        self._uneven = [pick.randint(0, 2) for _ in range(cluster.size)] if pick.random() < 0.4 else []
        self._says_why = pick.random() < 0.5
        for rank in range(cluster.size):
            cluster.start(rank, self._live(rank))

    def _live(self, rank: int) -> Script:
        worker = self.cluster.workers[rank]
        yield from worker.train(self._train(worker))
        yield from worker.leave(str(worker.failure or "") if self._says_why else "")

    def _train(self, worker: Worker) -> Script:
        yield from self._register(worker)
        summer = Summer(self.cluster, worker.rank, self.tables)
        yield from self._sum_and_gather(worker, summer)
        yield from summer.pull(self._steps)
        if self._uneven:
            yield from join(summer, self.tables, self._steps, self._uneven)
        digest: list[tuple[str, bytes]] = [("weight", b"the same")]
        differing = yield from worker.agree("digest", msgspec.msgpack.encode(digest))
        self.cluster.check(not differing, f"rank {worker.rank} hears of drift: {differing!r}")

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

    # What must have come of it

    def check_all_well(self) -> None:
        for worker in self.cluster.workers:
            self.cluster.check(worker.is_done, f"rank {worker.rank} ended with {worker.failure!r}")
        check_all_answered(self.cluster, self.tables)
        check_quiet(self.cluster)

    def check_named(self, culprits: set[int]) -> None:
        """Whoever has not come to its end names one of these."""
        for worker in self.cluster.workers:
            if worker.is_running:
                named = self.cluster.invariants.find_named(worker.failure)
                is_well = worker.is_done or named in culprits
                self.cluster.check(is_well, f"rank {worker.rank} ended with {worker.failure!r}, not naming {culprits}")


def join(summer: Summer, tables: list[Table], first: int, rounds: list[int]) -> Script:
    """Every rank's own number of rounds, from `first` on; then all meet and go on together, as `join()` does."""
    worker = summer.worker
    ends = [first + count for count in rounds]
    yield from summer.train(first, ends[summer.rank], ends)
    for table in tables:
        worker.group.join(table.slices, divide_by_active=summer.by_active)
    own = [worker.group.rounds_done(table.slices) for table in tables]
    payload = yield from worker.agree("join", msgspec.msgpack.encode(own))
    _, steps, _ = decode_latest(payload)
    for table, step in zip(tables, steps, strict=True):
        worker.group.resume(table.slices, step)
    yield from worker.agree("barrier")


def check_quiet(cluster: Cluster) -> None:
    """Nobody waits for anything or has anything left to send."""
    for worker in cluster.workers:
        pending = worker.exchange.pending()
        cluster.check(pending is None, f"rank {worker.rank} still waits for {pending}")
        cluster.check(worker.exchange.is_drained, f"rank {worker.rank} still sends")


def rehearse(make: Callable[[], Life]) -> int:
    """How many events this life has without any fault; it must go well."""
    life = make()
    life.cluster.run()
    life.check_all_well()
    life.cluster.story.begin_again()
    return life.cluster.events
