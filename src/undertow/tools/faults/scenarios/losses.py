"""Workers that die, stop, are slow or cut off at any event of a job: no rank hangs, and all name the same cause."""

from __future__ import annotations

import random
from collections.abc import Callable

from undertow.tools.faults.cluster import LONGEST_DELAY_S, SILENCE_S, Cluster
from undertow.tools.faults.event_log import Case
from undertow.tools.faults.network import draw_prefix
from undertow.tools.faults.scenarios.departures import train_and_leave
from undertow.tools.faults.sums import check_all_done, make_tables
from undertow.tools.faults.whole_job import WholeJob, check_named, rehearse
from undertow.tools.faults.worker import Worker

# A worker that is stopped for this long, and whose next frame comes after a tick and the longest delay, is not lost.
LONGEST_STOP_S = 6.0
# From a stop to the last rank's error: frames in flight, the timeout, two ticks, and the report of the loss.
LATEST_ERROR_S = LONGEST_DELAY_S + SILENCE_S + 3.0 + LONGEST_DELAY_S


def run_killed(case: Case) -> None:
    """Check that a worker that is killed at any event is named by all ranks that still needed it."""

    def kill(cluster: Cluster) -> set[int]:
        culprit = case.dice.randrange(cluster.size)
        cluster.kill(culprit, draw_prefix(case.dice))
        return {culprit}

    _strike(case, kill)


def run_cut(case: Case) -> None:
    """Check that a link that is cut at any event ends the job everywhere, and all name one of its ends."""

    def cut(cluster: Cluster) -> set[int]:
        one, other = case.dice.sample(range(cluster.size), 2)
        cluster.cut(one, other, draw_prefix(case.dice))
        return {one, other}

    _strike(case, cut)


def run_damaged(case: Case) -> None:
    """Check that a flipped bit in any frame ends the job, and all name its sender, unless the frame was not needed."""

    def damage(cluster: Cluster) -> set[int]:
        links = cluster.network.links_with_sent_frames()
        if not links:
            return set()
        link = case.dice.choice(links)
        cluster.note(f"a bit flips on the link from {link[0]} to {link[1]}")
        cluster.invariants.may_be_named.add(link[0])
        cluster.network.damage(link, case.dice)
        return {link[0]}

    _strike(case, damage)


def run_stopped(case: Case) -> None:
    """Check that a worker that stops for good, its links open, is named in time by all ranks that still needed it."""

    stopped_at_s = 0.0

    def stop(cluster: Cluster) -> set[int]:
        nonlocal stopped_at_s
        culprit, stopped_at_s = case.dice.randrange(cluster.size), cluster.clock.now_s
        cluster.stop(culprit)
        cluster.invariants.may_be_named = {culprit}
        return {culprit}

    cluster = _strike(case, stop)
    for rank, failed_at_s in cluster.invariants.failed_at_s.items():
        after_s = failed_at_s - stopped_at_s
        cluster.check(after_s < LATEST_ERROR_S, f"rank {rank} names the stopped rank only after {after_s:.1f} s")
    for worker in cluster.workers:
        if not worker.is_running:
            _resume(cluster, worker)


def _resume(cluster: Cluster, worker: Worker) -> None:
    """Let a stopped worker run again after all others have gone: it must end too, whatever rank it names."""
    cluster.invariants.may_be_named = set(range(cluster.size))
    cluster.resume(worker.rank)
    cluster.run()


def _strike(case: Case, fault: Callable[[Cluster], set[int]]) -> Cluster:
    """Run a whole job with this fault at one of its events, all equally likely."""
    events = rehearse(case, fewest_workers=2)
    cluster = Cluster(case, fewest_workers=2)
    WholeJob(cluster)
    culprits = set[int]()
    cluster.plan(case.dice.randrange(events), lambda: culprits.update(fault(cluster)))
    cluster.run()
    check_named(cluster, culprits)
    return cluster


def run_slow(case: Case) -> None:
    """Check that workers that are stopped for less than the silence timeout are not named and name no others."""
    cluster, dice = Cluster(case, fewest_workers=2), case.dice
    cluster.time_share = 0.02
    stop = _make_stop(cluster, dice)
    for _ in range(dice.randint(1, 3)):
        cluster.plan(dice.randrange(250), stop)
    whole_job = WholeJob(cluster)
    cluster.run()
    whole_job.check_all_well()


def run_slow_goodbye(case: Case) -> None:
    """Check that a rank that is done leaves only after a rank that was stopped for a while has all it needs."""
    cluster = Cluster(case, fewest_workers=2, most_credit=2)
    cluster.slow_links()
    stop = _make_stop(cluster, case.dice)
    tables = make_tables(cluster, most_tensors=8)  # more than the credit allows at once
    train_and_leave(cluster, tables, [1] * cluster.size)
    cluster.run(until=lambda: any(worker.is_done and len(worker.outbox) for worker in cluster.workers))
    for _ in range(case.dice.randint(1, cluster.size)):
        stop()
    cluster.run()
    check_all_done(cluster, tables)


def _make_stop(cluster: Cluster, dice: random.Random) -> Callable[[], None]:
    """Return a function that stops the next worker and lets it run again."""
    fresh = dice.sample(range(cluster.size), cluster.size)  # each only once: two stops in a row may be too long

    def stop() -> None:
        if fresh:
            rank = fresh.pop()
            cluster.stop(rank)
            cluster.clock.after(dice.uniform(0.1, LONGEST_STOP_S), lambda: cluster.resume(rank))

    return stop
