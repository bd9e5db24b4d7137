"""After a death the survivors leave, and all start again, while frames of the old job still arrive."""

from __future__ import annotations

from undertow.core import frames
from undertow.faults.case import Case
from undertow.faults.cluster import Cluster
from undertow.faults.life import Life
from undertow.faults.network import Sent, draw_prefix

MOST_LATE_FRAMES = 30
NEXT_JOB = 8


def run_restart(case: Case) -> None:
    """What the old job said is dropped and counted, and every sum of the new one is right."""
    first, dice = Cluster(case, fewest_workers=2), case.dice
    record = first.network.record = []
    life, culprit = Life(first), dice.randrange(first.size)
    first.plan(dice.randrange(150), lambda: first.kill(culprit, draw_prefix(dice)))
    first.run()
    life.check_named({culprit})
    _start_again(case, first.size, record)


def _start_again(case: Case, most_workers: int, record: list[Sent]) -> None:
    """Some of the workers, as a new job; the dead one's host may be missing."""
    cluster, dice = Cluster(case, fewest_workers=2, most_workers=most_workers, job=NEXT_JOB), case.dice
    cluster.invariants.may_drop = True
    life = Life(cluster)
    late = [sent for sent in record if max(sent[:2]) < cluster.size]

    def let_one_come() -> None:
        sent = dice.choice(late)
        cluster.tell(f"late, of the old job, from {sent[0]} to {sent[1]}: {frames.unpack(sent[2])}")
        cluster.network.inject(sent)

    for _ in range(dice.randint(1, MOST_LATE_FRAMES) if late else 0):
        cluster.plan(dice.choice([0, dice.randrange(60)]), let_one_come)
    cluster.run()
    life.check_all_well()
    came, dropped = cluster.invariants.strangers, sum(worker.group.dropped.total() for worker in cluster.workers)
    cluster.check(came == dropped, f"late frames: {came} came, {dropped} were dropped")
