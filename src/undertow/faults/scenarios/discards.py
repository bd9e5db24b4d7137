"""Tables that ranks discard at different times: forgotten by all once all have discarded them, and never before."""

from __future__ import annotations

from collections.abc import Iterable

from undertow.faults.case import Case
from undertow.faults.cluster import Cluster
from undertow.faults.life import check_quiet
from undertow.faults.network import draw_prefix
from undertow.faults.pieces import Publisher, draw_gathered, draw_published
from undertow.faults.sums import Summer
from undertow.faults.tables import Table, check_all_answered, draw_tables
from undertow.faults.worker import Script, Worker
from undertow.plan.slicing import Slice


def run_discards(case: Case) -> None:
    """Keys that all ranks have discarded, even with rounds under way, are forgotten by all; others stay."""
    cluster, dice = Cluster(case), case.dice
    models = Models(cluster, keeper=dice.choice([None, dice.randrange(cluster.size)]))
    is_killed = cluster.size > 1 and dice.random() < 0.2
    if is_killed:
        cluster.plan(dice.randint(1, 400), lambda: cluster.kill(cluster.size - 1, draw_prefix(dice)))
    cluster.run()
    if not is_killed:
        models.check_all_well()


class Models:
    """Scripts that make one model after the other, and discard each before they make the next.

    The keeper, if there is one, never discards the first of them.
    """

    def __init__(self, cluster: Cluster, keeper: int | None) -> None:
        pick = cluster.random
        self._cluster = cluster
        self._keeper = keeper
        self._models = [draw_tables(cluster, most_tensors=2) for _ in range(pick.randint(1, 3))]
        self._published = draw_published(cluster) if pick.random() < 0.5 else draw_gathered(cluster)[:1]
        self._publishers = [Publisher(cluster, rank, self._published) for rank in range(cluster.size)]
        for worker in cluster.workers:
            cluster.start(worker.rank, self._live(worker))

    def _live(self, worker: Worker) -> Script:
        yield from worker.train(self._train(worker))
        yield from worker.leave(str(worker.failure or ""))

    def _train(self, worker: Worker) -> Script:
        worker.group.learn(self._published)
        for number, tables in enumerate(self._models):
            for table in tables:
                table.slices = yield from worker.register(table.tensors, op=table.op, keep=table.keep)
            yield from worker.agree("barrier")
            yield from self._use(worker, tables, self._publishers[worker.rank] if number == 0 else None)
            if number > 0 or self._keeper != worker.rank:
                yield from self._discard(worker, tables, with_published=number == 0)
        yield from worker.until("the others to discard", lambda: self._is_over(worker))
        yield from worker.agree("barrier")

    def _use(self, worker: Worker, tables: list[Table], publisher: Publisher | None) -> Script:
        """Two rounds; the results of the last one may come after the tables are discarded."""
        summer, waits = Summer(self._cluster, worker.rank, tables), self._cluster.random.random() < 0.5
        for step in range(2):
            if publisher is not None:
                yield from publisher.contribute(step)
            yield from summer.contribute(step)
            if step == 0 or waits:
                yield from summer.wait()
            if publisher is not None:
                yield from publisher.wait()

    def _discard(self, worker: Worker, tables: list[Table], *, with_published: bool) -> Script:
        ranges = [_find_keys(table.slices) for table in tables]
        for keys in [*ranges, _find_keys(self._published) if with_published else range(0)]:
            if keys:
                worker.group.discard(keys)
                yield from worker.until("its turn", lambda: True)

    def _is_over(self, worker: Worker) -> bool:
        """Whether this rank has forgotten what all discard."""
        return not any(worker.exchange.knows(key) for key in self._find_discarded())

    def _find_discarded(self) -> list[int]:
        models = self._models if self._keeper is None else self._models[1:]
        keys = [key for tables in models for table in tables for key in _find_keys(table.slices)]
        return keys + ([] if self._keeper is not None else [*_find_keys(self._published)])

    def check_all_well(self) -> None:
        cluster, tables = self._cluster, [table for tables in self._models for table in tables]
        for worker in cluster.workers:
            cluster.check(worker.is_done, f"rank {worker.rank} ended with {worker.failure!r}")
            kept = [item for table in self._models[0] for item in table.slices] + self._published
            wanted = set() if self._keeper is None else {item.spec.key for item in kept}
            known = find_known(worker)
            cluster.check(known == wanted, f"rank {worker.rank} knows the keys {known} at the end, not {wanted}")
        check_all_answered(cluster, tables)
        check_quiet(cluster)


def find_known(worker: Worker) -> set[int]:
    """All keys that any part of this worker still knows."""
    exchange = worker.exchange
    places: list[Iterable[int]] = [
        exchange._flow._specs,
        exchange._flow._steps,
        exchange._shard._specs,
        exchange._shard._done,
        exchange._shard._values,
        exchange._shard._absent,
        exchange._gathering._done,
        exchange._priorities,
    ]
    return {key for place in places for key in place}


def _find_keys(slices: list[Slice]) -> range:
    if not slices:
        return range(0)
    first, last = slices[0].spec.key, slices[-1].spec.key
    return range(first, last + 1)
