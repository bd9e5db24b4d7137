"""Gates over the real exchange: any schedule, credit and slice size give the same bits.

Needs torch, which is imported when a seed picks this scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from undertow.engine.client.group import ConnectedGroup
from undertow.engine.client.waiting import Ticket
from undertow.engine.coordinator.messages import TableProposal
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Op
from undertow.engine.core.slicing import Slice, TensorSpec
from undertow.tools.faults.cluster import Cluster
from undertow.tools.faults.event_log import Case

if TYPE_CHECKING:
    from undertow.tools.faults.gated_training import Twin


class EchoGroup(ConnectedGroup):
    """Group of the first of two workers; the other one contributes a multiple of each contribution at once."""

    def __init__(self, cluster: Cluster, times: int) -> None:
        vars(self).update(vars(cluster.workers[0].group))  # the same engine
        self.missing: dict[Ticket, int] = {}  # our own count of each ticket's missing answers
        self._cluster = cluster
        self._times = times

    def discard(self, keys: range) -> None:
        """Keep the keys: the seed does not decide when Python collects a table."""

    def register(
        self, label: str, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0
    ) -> list[Slice]:
        TableProposal(label, list(tensors), op, keep, keys).check()
        return self._cluster.register(tensors, op=op, keep=keep, keys=keys)

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        ours, theirs = self._cluster.workers
        echo = [replace(one, on_result=lambda answered: None) for one in contributions]
        for one in echo:
            if one.source is not None:
                one.source = one.target = one.source * self._times
        for one in contributions:
            one.on_result = self._count(one.on_result)
        theirs.contribute(echo, is_ready)
        ours.contribute(contributions, is_ready)

    def _count(self, answer: Callable[[Contribution], None]) -> Callable[[Contribution], None]:
        ticket = getattr(answer, "__self__", None)
        if not isinstance(ticket, Ticket):
            return answer
        self.missing[ticket] = self.missing.get(ticket, 0) + 1

        def on_result(contribution: Contribution) -> None:
            self.missing[ticket] -= 1
            answer(contribution)

        return on_result

    def wait_for(self, ticket: Ticket, reason: str = "", *, tensor: str = "") -> None:
        self.check()
        self._cluster.run(until=lambda: ticket.is_done)
        self._cluster.check(ticket.is_done, "a worker waits at a gate that never opens")

    def agree(self, matter: str, payload: bytes = b"") -> bytes:
        pending = [worker.group.begin_agreement(matter, payload) for worker in self._cluster.workers]
        self._cluster.run(until=lambda: all(each.done.is_set() for each in pending))
        return pending[0].take()


def run_gates(case: Case) -> None:
    """Check that gates under any credit give the same bits, and none is open before its result has come."""
    from undertow.tools.faults import gated_training

    cluster, dice = Cluster(case, fewest_workers=2, most_workers=2), case.dice
    cluster.change_credit()
    group = EchoGroup(cluster, gated_training.OTHER)

    def deliver_some() -> None:
        events = iter(range(dice.choice([0, 1, 5, 50])))
        cluster.run(until=lambda: next(events, None) is None)

    with _use_group(group):
        make_optimizer = gated_training.OPTIMIZERS[dice.choice(sorted(gated_training.OPTIMIZERS))]
        twin = gated_training.Twin(gated_training.Net(), make_optimizer)
        cluster.invariants.further.append(lambda: _check_gates(cluster, group, twin))
        gated_training.train(twin, dice, deliver_some)
        difference = twin.find_difference()
    cluster.check(difference is None, f"gates: {difference} differs from a training without gates")


def _check_gates(cluster: Cluster, group: EchoGroup, twin: Twin) -> None:
    for ticket, missing in group.missing.items():
        if ticket.is_done and missing:
            cluster.fail(f"a gate is open early: {missing} answers are still missing")
    if twin.in_backward:
        return
    for gradients, gates in twin.model._overlap.gates._gates.items():
        for gate in gates:
            ticket = gradients._completions[gate._index]
            if not gate.is_closed and group.missing.get(ticket, 0):
                cluster.fail(f"a gate is open early: that of {gradients.name(gate._index)}, whose result has not come")


@contextmanager
def _use_group(group: EchoGroup) -> Iterator[None]:
    """Make models use this group while the block runs."""
    from undertow.torch.ddp import synchroniser

    module: Any = synchroniser
    usual, module.group_for = module.group_for, lambda process_group=None: group
    try:
        yield
    finally:
        module.group_for = usual
