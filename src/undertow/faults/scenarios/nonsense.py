"""Frames that make no sense, from a peer that knows the token: dropped and counted, nothing else."""

from __future__ import annotations

from undertow.core import frames
from undertow.core.frames import Kind
from undertow.faults.babbler import Babbler
from undertow.faults.case import Case
from undertow.faults.cluster import Cluster
from undertow.faults.life import Life, rehearse
from undertow.faults.network import draw_prefix
from undertow.faults.sums import Summer
from undertow.faults.tables import check_all_answered, make_tables
from undertow.faults.worker import Script

MOST_UTTERANCES = 20
# A heartbeat says nothing that could be wrong.  To pull twice is a right: both pulls are answered, and if the puller
# throws an answer away, its shard waits for that credit in vain.
HARMLESS = (Kind.HEARTBEAT, Kind.PULL)


def run_nonsense(case: Case) -> None:
    """Everybody babbles: every frame of nonsense is dropped and counted, and every sum is right."""
    cluster, dice = Cluster(case, fewest_workers=2), case.dice
    tables = make_tables(cluster)
    babblers = [Babbler(cluster, rank, tables, dice) for rank in range(cluster.size)]

    def script(rank: int) -> Script:
        summer = Summer(cluster, rank, tables)
        for wait in summer.train(0, 3):
            if dice.random() < 0.5:
                babblers[rank].speak()
            yield wait
        yield from summer.worker.agree("barrier")
        yield from summer.pull(3)

    for worker in cluster.workers:
        cluster.start(worker.rank, worker.train(script(worker.rank)))
    cluster.run()
    check_all_answered(cluster, tables)
    for worker in cluster.workers:
        cluster.check(worker.is_done, f"rank {worker.rank} ended with {worker.failure!r}")
    said = sum(babbler.said for babbler in babblers)
    dropped = sum(worker.group.dropped.total() for worker in cluster.workers)
    cluster.check(said == dropped, f"nonsense: {said} frames were said, {dropped} dropped")


def run_babble_and_death(case: Case) -> None:
    """Somebody babbles while another one dies or stops: the survivors name the dead, not the babbler."""
    events = rehearse(lambda: Life(Cluster(case, fewest_workers=3)))
    cluster, dice = Cluster(case, fewest_workers=3), case.dice
    life = Life(cluster)
    culprit, rank = dice.sample(range(cluster.size), 2)
    babbler = Babbler(cluster, rank, life.tables, dice)
    for _ in range(dice.randint(1, MOST_UTTERANCES)):
        cluster.plan(dice.randrange(events), babbler.speak)
    if dice.random() < 0.7:
        cluster.plan(dice.randrange(events), lambda: cluster.kill(culprit, draw_prefix(dice)))
    else:
        cluster.invariants.may_be_named = {culprit}
        cluster.plan(dice.randrange(events), lambda: cluster.stop(culprit))
    cluster.run()
    life.check_named({culprit})


def run_repeats(case: Case) -> None:
    """A peer repeats frames of any kind that it sent before, bodies and all: nobody is the worse for it."""
    events = rehearse(lambda: Life(Cluster(case, fewest_workers=2)))
    cluster, dice = Cluster(case, fewest_workers=2), case.dice
    cluster.invariants.may_drop = True
    record = cluster.network.record = []
    life = Life(cluster)

    def repeat() -> None:
        sayings = [sent for sent in record if frames.unpack(sent[2]).kind not in HARMLESS]
        if sayings:
            sent = dice.choice(sayings[-30:] if dice.random() < 0.5 else sayings)
            cluster.tell(f"rank {sent[0]} says again to {sent[1]}: {frames.unpack(sent[2])}")
            cluster.network.inject(sent)

    for _ in range(dice.randint(1, MOST_UTTERANCES)):
        cluster.plan(dice.randrange(events), repeat)
    cluster.run()
    life.check_all_well()
