"""Workers that train and leave, in order or not, some before other ranks have their results.

No rank hangs, nothing is lost, and all ranks name the same cause.
"""

from __future__ import annotations

from undertow.tools.faults.cluster import LONGEST_DELAY_S, SILENCE_S, Cluster
from undertow.tools.faults.event_log import Case
from undertow.tools.faults.gathers import Publisher, draw_published
from undertow.tools.faults.network import draw_prefix
from undertow.tools.faults.sums import Summer, Table, check_all_done, make_tables
from undertow.tools.faults.whole_job import check_named, check_quiet
from undertow.tools.faults.worker import Script, Worker

ENDLESS = 10**6  # steps
# From the last contribution to the last goodbye: results, pauses between two checks, and the answers to the goodbye.
LONGEST_END_S = 4 * LONGEST_DELAY_S + SILENCE_S


def run_orderly(case: Case) -> None:
    """Check that no rank fails when all ranks leave in order."""
    cluster = Cluster(case)
    tables = make_tables(cluster)
    train_and_leave(cluster, tables, [cluster.random.randint(0, 3)] * cluster.size)
    cluster.run()
    check_all_done(cluster, tables)


def run_early(case: Case) -> None:
    """Check that a worker that leaves in order, but too early, is named by all others."""
    cluster = Cluster(case, fewest_workers=2)
    tables = make_work(cluster)
    culprit, steps = case.dice.randrange(cluster.size), case.dice.randint(1, 3)
    ends = [steps] * cluster.size
    ends[culprit] = case.dice.randrange(steps)
    cluster.invariants.may_be_named = {culprit}
    train_and_leave(cluster, tables, ends)
    cluster.run()
    early = cluster.workers[culprit]
    cluster.check(early.is_done, f"rank {culprit} left in order and failed: {early.failure}")
    check_all_name(cluster, {culprit})


def run_endless(case: Case) -> None:
    """Check that in a job without end a death or a cut ends every rank, and none finishes before."""
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
    """Draw tables until there is one with slices."""
    while True:
        tables = make_tables(cluster)
        if any(table.slices for table in tables):
            return tables


def train_and_leave(cluster: Cluster, tables: list[Table], steps: list[int]) -> None:
    """Let every rank make its own number of steps, although each step needs all ranks."""

    def train(worker: Worker) -> Script:
        return Summer(cluster, worker.rank, tables).train(0, steps[worker.rank], [max(steps)] * cluster.size)

    cluster.start_all(lambda worker: worker.run(train(worker)))


def check_all_name(cluster: Cluster, culprits: set[int]) -> None:
    """Check that every rank that still runs has named one of these, unless it left too early itself."""
    for worker in cluster.workers:
        if worker.is_running and not worker.is_done:
            named = cluster.invariants.find_named(worker.failure)
            claim = f"rank {worker.rank} does not name {culprits}, but ended with {worker.failure!r}"
            cluster.check(named in culprits, claim)
        elif worker.is_running:
            cluster.check(worker.rank in culprits, f"rank {worker.rank} was done, but no rank can be")


def run_ending(case: Case) -> None:
    """Check that a rank whose script ends right after its last contribution still sends the others all they need."""
    if case.dice.random() < 0.25:
        _run_crossed(case)
        return
    cluster = Cluster(case, fewest_workers=2)
    ends = Ends(cluster, [case.dice.choice([0.0, case.dice.uniform(0.0, 8.0)]) for _ in range(cluster.size)])
    cluster.run()
    ends.check_all_well()


def run_late_leaving(case: Case) -> None:
    """Check that ranks whose scripts have ended wait for a rank that is minutes late, but not for a dead one."""
    cluster, dice = Cluster(case, fewest_workers=2), case.dice
    late, culprits = dice.randrange(cluster.size), set[int]()
    late_s = dice.choice([dice.uniform(1, 15), dice.uniform(10, 60), dice.uniform(60, 240)])
    ends = Ends(cluster, [late_s if rank == late else 0.0 for rank in range(cluster.size)])
    if dice.random() < 0.5:
        culprits.add(dice.randrange(cluster.size))
        cluster.clock.after(dice.uniform(0.0, late_s), lambda: cluster.kill(min(culprits), draw_prefix(dice)))
    cluster.run()
    if culprits:
        check_named(cluster, culprits)
    else:
        ends.check_all_well()


class Ends:
    """Scripts with sums, gathered bytes and rows, whose last step begins late, by a delay of each rank.

    Some scripts wait for the results of that step; the others end at once.
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
        cluster.start_all(lambda worker: worker.run(self._train(worker)))

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
        cluster = self.cluster
        wanted = self._steps * sum(not item.spec.is_published for item in self._published)
        check_all_done(cluster, self._tables)
        for worker in cluster.workers:
            answers = self._publishers[worker.rank].answers
            cluster.check(answers == wanted, f"rank {worker.rank}: {answers} answers of {wanted} at its end")
        cluster.check(all(set(table.answers) == {1} for table in self._tables if table.slices), "a sum has no answer")
        check_quiet(cluster)
        last_s = cluster.clock.now_s - max(self._delays_s)
        cluster.check(last_s < LONGEST_END_S, f"the last rank left {last_s:.1f} s after the last step began")


def _sleep(worker: Worker, cluster: Cluster, delay_s: float) -> Script:
    """Let the training thread do something else for a while; its engine keeps running."""
    until_s = cluster.clock.now_s + delay_s
    cluster.clock.after(delay_s, lambda: None)
    yield from worker.until("its last step", lambda: cluster.clock.now_s >= until_s)


def _run_crossed(case: Case) -> None:
    """End every script after sums of its own choice, without waiting: ranks that wait for each other still leave."""
    cluster = Cluster(case, fewest_workers=2)
    tables = [*make_work(cluster), *make_work(cluster)]
    cluster.invariants.may_be_named = set(range(cluster.size))

    def train(worker: Worker, chosen: list[Table]) -> Script:
        for step in range(cluster.random.randint(0, 2)):
            yield from Summer(cluster, worker.rank, chosen).contribute(step)

    for worker in cluster.workers:
        chosen = [table for table in tables if case.dice.random() < 0.5]
        cluster.start(worker.rank, worker.run(train(worker, chosen)))
    cluster.run()
    for worker in cluster.workers:
        cluster.check(worker.is_closed, f"rank {worker.rank} has not left")
