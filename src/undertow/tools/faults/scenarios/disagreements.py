"""Ranks that disagree: all receive the mismatch, and none waits for ever."""

from __future__ import annotations

import msgspec

from undertow.engine.coordinator import messages
from undertow.engine.core.dtypes import DType
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import TensorSpec
from undertow.tools.faults.cluster import Cluster
from undertow.tools.faults.event_log import Case
from undertow.tools.faults.worker import Script, Worker


def run_disagree(case: Case) -> None:
    """Check that if one rank has another tensor or makes another call, all are told, or name a rank that has left."""
    cluster, dice = Cluster(case, fewest_workers=2), case.dice
    odd, barriers, is_tensor = dice.randrange(cluster.size), dice.randint(0, 2), dice.random() < 0.5
    if not is_tensor:
        # Ranks that have arrived are told at once, and leave: the others may find them gone before they are told.
        cluster.invariants.may_be_named = set(range(cluster.size))

    def script(worker: Worker) -> Script:
        for _ in range(barriers):
            yield from worker.agree("barrier")
        is_odd = worker.rank == odd
        matter, payload = ("tensors", _describe(is_odd)) if is_tensor else ("digest" if is_odd else "barrier", b"")
        result = yield from worker.find_agreement(matter, payload)
        is_told = result.mismatch is not None and odd in result.mismatch.ranks
        cluster.check(is_told, f"rank {worker.rank} is not told that rank {odd} differs: {result}")

    cluster.start_all(lambda worker: worker.run(script(worker), sends_error=False))
    cluster.run()
    told = sum(worker.is_done for worker in cluster.workers)
    cluster.check(told >= (cluster.size if is_tensor else 1), f"only {told} ranks are told that rank {odd} differs")


def _describe(is_odd: bool) -> bytes:
    elements = 4 if is_odd else 3
    table = messages.TableProposal("Net", [TensorSpec("w", (elements,), DType.FLOAT32, elements)], Op.MEAN, False)
    return msgspec.msgpack.encode(table)
