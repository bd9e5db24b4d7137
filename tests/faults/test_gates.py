"""Gates over the real exchange: any schedule, any credit, any size of slices give the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest import mock

from tests.faults.cluster import Cluster
from tests.gated_training import OPTIMIZERS, check_training
from undertow.core.flow import Contribution
from undertow.core.rounds import Op
from undertow.plan.slicing import Slice, TensorSpec
from undertow.runtime.waiting import Ticket
from undertow.settings import Priority

SEEDS = 150


class EchoGroup:
    """This worker's group of two.  The other one contributes three times what this one does, at once."""

    rank, size = 0, 2
    wait_free = True
    plan = "auto"
    profile = ""
    priority = Priority.BOTH

    def __init__(self, cluster: Cluster) -> None:
        self.waiters = self
        self.sizes = cluster.groups[0].sizes
        self._cluster = cluster

    def register(
        self, label: str, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0
    ) -> list[Slice]:
        return self._cluster.register(tensors, op=op, keep=keep)

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        ours, theirs = self._cluster.groups
        echo = [replace(one, on_result=lambda answered: None) for one in contributions]
        for one in echo:
            if one.source is not None:
                one.source = one.target = one.source * 3
        theirs.contribute(echo)
        ours.contribute(contributions)

    def wait_for(self, ticket: Ticket) -> None:
        self._cluster.run(until=lambda: ticket.is_done)
        self._cluster.check(ticket.is_done, "somebody waits at a gate that never opens")


def test_gates_under_any_credit_give_the_same_bits(seed: int) -> None:
    cluster = Cluster(seed, fewest_workers=2, most_workers=2)
    cluster.changes_credit = True
    pick = cluster.random

    def let_some_come() -> None:
        events = iter(range(pick.choice([0, 1, 5, 50])))
        cluster.run(until=lambda: next(events, None) is None)

    with mock.patch("undertow.torch.synchroniser.group_for", return_value=EchoGroup(cluster)):
        check_training(pick, pick.choice(sorted(OPTIMIZERS)), let_some_come)
    for group in cluster.groups:
        cluster.check(not group.dropped, f"rank {group.rank} dropped {dict(group.dropped)}")
