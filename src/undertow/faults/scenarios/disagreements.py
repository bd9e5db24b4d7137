"""Ranks that do not do the same: everybody hears of it, and nobody waits for ever."""

from __future__ import annotations

import msgspec

from undertow.coordinator import messages
from undertow.core.dtypes import DType
from undertow.core.rounds import Op
from undertow.faults.case import Case
from undertow.faults.cluster import Cluster
from undertow.faults.worker import Script, Worker
from undertow.plan.slicing import TensorSpec


def run_disagree(case: Case) -> None:
    """When one rank holds another tensor, or calls something else, all are told so or miss who was."""
    cluster, dice = Cluster(case, fewest_workers=2), case.dice
    odd, barriers, is_tensor = dice.randrange(cluster.size), dice.randint(0, 2), dice.random() < 0.5
    if not is_tensor:
        # Those who are there are told at once, and leave: the others may find them gone before they hear why.
        cluster.invariants.may_be_named = set(range(cluster.size))

    def script(worker: Worker) -> Script:
        for _ in range(barriers):
            yield from worker.agree("barrier")
        is_odd = worker.rank == odd
        matter, payload = ("tensors", _describe(is_odd)) if is_tensor else ("digest" if is_odd else "barrier", b"")
        verdict = yield from worker.ask(matter, payload)
        cluster.check("rank" in verdict.error, f"rank {worker.rank} is not told that rank {odd} differs: {verdict}")

    def live(worker: Worker) -> Script:
        yield from worker.train(script(worker))
        yield from worker.leave()

    for worker in cluster.workers:
        cluster.start(worker.rank, live(worker))
    cluster.run()
    told = sum(worker.is_done for worker in cluster.workers)
    cluster.check(told >= (cluster.size if is_tensor else 1), f"only {told} ranks are told that rank {odd} differs")


def _describe(is_odd: bool) -> bytes:
    elements = 4 if is_odd else 3
    table = messages.Table("Net", [TensorSpec("w", (elements,), DType.FLOAT32, elements)], Op.MEAN, False)
    return msgspec.msgpack.encode(table)
