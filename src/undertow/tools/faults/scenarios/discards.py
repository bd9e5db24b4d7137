"""Tables that ranks discard at different times: all forget them after all have discarded them, and never before."""

from __future__ import annotations

from collections.abc import Iterable

from undertow.engine.core.slicing import Slice
from undertow.tools.faults.cluster import Cluster
from undertow.tools.faults.event_log import Case
from undertow.tools.faults.gathers import Publisher, draw_gathered, draw_published
from undertow.tools.faults.network import draw_prefix
from undertow.tools.faults.sums import Summer, Table, check_all_done, draw_tables
from undertow.tools.faults.whole_job import check_quiet
from undertow.tools.faults.worker import Script, Worker


def run_discards(case: Case) -> None:
    """Check that all ranks forget the keys that all have discarded, even with rounds under way, and no others."""
    cluster, dice = Cluster(case), case.dice
    models = Models(cluster, keeper=dice.choice([None, dice.randrange(cluster.size)]))
    is_killed = cluster.size > 1 and dice.random() < 0.2
    if is_killed:
        cluster.plan(dice.randint(1, 400), lambda: cluster.kill(cluster.size - 1, draw_prefix(dice)))
    cluster.run()
    if not is_killed:
        models.check_all_well()


class Models:
    """Scripts that make several models, and discard each before they make the next.

    The keeper, if there is one, never discards the first model.
    """

    def __init__(self, cluster: Cluster, keeper: int | None) -> None:
        pick = cluster.random
        self._cluster = cluster
        self._keeper = keeper
        self._models = [draw_tables(cluster, most_tensors=2) for _ in range(pick.randint(1, 3))]
        self._published = draw_published(cluster) if pick.random() < 0.5 else draw_gathered(cluster)[:1]
        self._publishers = [Publisher(cluster, rank, self._published) for rank in range(cluster.size)]
        cluster.start_all(lambda worker: worker.run(self._train(worker)))

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
        """Train two rounds; the results of the last one may come after the tables are discarded."""
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
                yield from worker.pause()

    def _is_over(self, worker: Worker) -> bool:
        """Return whether this rank has forgotten all keys that all ranks discard."""
        return not any(worker.exchange.knows(key) for key in self._find_discarded())

    def _find_discarded(self) -> list[int]:
        models = self._models if self._keeper is None else self._models[1:]
        keys = [key for tables in models for table in tables for key in _find_keys(table.slices)]
        return keys + ([] if self._keeper is not None else [*_find_keys(self._published)])

    def check_all_well(self) -> None:
        cluster = self._cluster
        check_all_done(cluster, [table for tables in self._models for table in tables])
        kept = [item for table in self._models[0] for item in table.slices] + self._published
        wanted = set() if self._keeper is None else {item.spec.key for item in kept}
        for worker in cluster.workers:
            known = find_known(worker)
            cluster.check(known == wanted, f"rank {worker.rank} knows the keys {known} at the end, not {wanted}")
        check_quiet(cluster)


def find_known(worker: Worker) -> set[int]:
    """Return all keys that any object of this worker still holds."""
    exchange = worker.exchange
    holders: list[Iterable[int]] = [
        exchange.worker.flow._specs,
        exchange.worker.flow._steps,
        exchange.worker.gathering.keys,
        exchange.shard._shard._specs,
        exchange.shard._shard._done,
        exchange.shard._shard._values,
        exchange.shard._shard._absent,
        exchange.shard._gathering.keys,
        exchange.shard._priorities,
    ]
    return {key for keys in holders for key in keys}


def _find_keys(slices: list[Slice]) -> range:
    if not slices:
        return range(0)
    first, last = slices[0].spec.key, slices[-1].spec.key
    return range(first, last + 1)
