"""Scripts that end before others have what they need of them: nothing is lost, and nobody waits for ever."""

from __future__ import annotations

import random

from undertow.faults.case import Case
from undertow.faults.cluster import LONGEST_DELAY_S, SILENCE_S, Cluster
from undertow.faults.life import check_quiet
from undertow.faults.network import draw_prefix
from undertow.faults.pieces import Publisher, draw_published
from undertow.faults.scenarios.departures import make_work
from undertow.faults.sums import Summer
from undertow.faults.tables import Table, check_all_answered
from undertow.faults.worker import Script, Worker

# From the last contribution to the last goodbye: results, pauses between two looks, and the answers to the goodbye.
LONGEST_END_S = 4 * LONGEST_DELAY_S + SILENCE_S


def run_ending(case: Case) -> None:
    """Scripts that end right after their last contribution leave nobody without what they owe."""
    if case.dice.random() < 0.25:
        _run_crossed(case)
        return
    cluster = Cluster(case, fewest_workers=2)
    ends = Ends(cluster, [case.dice.choice([0.0, case.dice.uniform(0.0, 8.0)]) for _ in range(cluster.size)])
    cluster.run()
    ends.check_all_well()


def run_late_leaving(case: Case) -> None:
    """Those whose scripts have ended wait for a rank that is minutes late for the last step, but for no dead one."""
    cluster, dice = Cluster(case, fewest_workers=2), case.dice
    late, late_s, culprits = dice.randrange(cluster.size), _draw_lateness(dice), set[int]()
    ends = Ends(cluster, [late_s if rank == late else 0.0 for rank in range(cluster.size)])
    if dice.random() < 0.5:
        culprits.add(dice.randrange(cluster.size))
        cluster.appoint(dice.uniform(0.0, late_s), lambda: cluster.kill(min(culprits), draw_prefix(dice)))
    cluster.run()
    if culprits:
        ends.check_named(culprits)
    else:
        ends.check_all_well()


def _draw_lateness(dice: random.Random) -> float:
    return dice.choice([dice.uniform(1, 15), dice.uniform(10, 60), dice.uniform(60, 240)])


class Ends:
    """Scripts with sums, pieces and rows, whose last step begins late, by each rank's own delay.

    Some scripts wait for its results, the others end at once.
    """

    def __init__(self, cluster: Cluster, delays_s: list[float]) -> None:
        self.cluster = cluster
        self._tables = make_work(cluster)
        self._published = draw_published(cluster)
        self._steps = cluster.random.randint(1, 2)
        self._delays_s = delays_s
        self._publishers = [Publisher(cluster, rank, self._published) for rank in range(cluster.size)]
        for worker in cluster.workers:
            worker.exchange.learn(self._published)
            cluster.start(worker.rank, self._live(worker))

    def _live(self, worker: Worker) -> Script:
        yield from worker.train(self._train(worker))
        yield from worker.leave(str(worker.failure or ""))

    def _train(self, worker: Worker) -> Script:
        summer, publisher = Summer(self.cluster, worker.rank, self._tables), self._publishers[worker.rank]
        reads = self.cluster.random.random() < 0.5
        for step in range(self._steps):
            is_last = step == self._steps - 1
            if is_last:
                yield from _sleep(worker, self.cluster, self._delays_s[worker.rank])
            yield from publisher.contribute(step)
            yield from summer.contribute(step)
            if reads or not is_last:
                yield from summer.wait()
                yield from publisher.wait()

    def check_all_well(self) -> None:
        cluster, wanted = self.cluster, self._count_answers()
        for worker in cluster.workers:
            cluster.check(worker.is_done, f"rank {worker.rank} ended with {worker.failure!r}")
            answers = self._publishers[worker.rank].answers
            cluster.check(answers == wanted, f"rank {worker.rank}: {answers} answers of {wanted} at its end")
        check_all_answered(cluster, self._tables)
        cluster.check(all(set(table.answers) == {1} for table in self._tables if table.slices), "a sum has no answer")
        check_quiet(cluster)
        last_s = cluster.clock.now_s - max(self._delays_s)
        cluster.check(last_s < LONGEST_END_S, f"the last one left {last_s:.1f} s after the last step began")

    def _count_answers(self) -> int:
        return self._steps * sum(not item.spec.is_published for item in self._published)

    def check_named(self, culprits: set[int]) -> None:
        for worker in self.cluster.workers:
            named = self.cluster.invariants.find_named(worker.failure)
            is_well = worker.is_done or named in culprits or not worker.is_running
            self.cluster.check(is_well, f"rank {worker.rank} ended with {worker.failure!r}, not naming {culprits}")


def _sleep(worker: Worker, cluster: Cluster, delay_s: float) -> Script:
    """The training thread does something else; its engine goes on."""
    until_s = cluster.clock.now_s + delay_s
    cluster.appoint(delay_s, lambda: None)
    yield from worker.until("its last step", lambda: cluster.clock.now_s >= until_s)


def _run_crossed(case: Case) -> None:
    """Every script ends after sums of its own choice, without waiting: ranks that lack each other still leave."""
    cluster = Cluster(case, fewest_workers=2)
    tables = [*make_work(cluster), *make_work(cluster)]
    cluster.invariants.may_be_named = set(range(cluster.size))

    def script(worker: Worker, chosen: list[Table]) -> Script:
        steps = cluster.random.randint(0, 2)

        def train() -> Script:
            for step in range(steps):
                yield from Summer(cluster, worker.rank, chosen).contribute(step)

        yield from worker.train(train())
        yield from worker.leave(str(worker.failure or ""))

    for worker in cluster.workers:
        cluster.start(worker.rank, script(worker, [table for table in tables if case.dice.random() < 0.5]))
    cluster.run()
    for worker in cluster.workers:
        cluster.check(worker.is_closed, f"rank {worker.rank} has not left")
