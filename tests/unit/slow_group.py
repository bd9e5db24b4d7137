"""A group of two workers whose answers come when they are waited for, or when a test says so.

The other worker's gradient is always three times ours, so the mean is twice ours: whoever sees
his own gradient, or a value without its update, is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import numpy as np

from undertow.core.flow import Contribution
from undertow.core.rounds import Op
from undertow.errors import UndertowError
from undertow.faults.gated_training import MEAN, Twin
from undertow.plan.placement import Placement
from undertow.plan.sizing import Sizes
from undertow.plan.slicing import Cut, Slice, TensorSpec, cut
from undertow.runtime.waiting import Ticket
from undertow.settings import Priority

__all__ = ["MEAN", "SlowGroup", "Twin", "slow_group"]


class SlowGroup:
    """Everything that is contributed lies here until it is delivered."""

    rank, size = 0, 2
    wait_free = True
    priority = Priority.BOTH
    plan = "auto"
    profile = ""
    sharing = None

    def __init__(self, slice_bytes: int = 64) -> None:
        self.waiters = self
        self.pending: list[Contribution] = []
        self.waits = 0  # how often somebody really had to wait
        self.error: UndertowError | None = None
        self.on_wait: Callable[[], object] = lambda: None
        self.sizes = Sizes(fixed=slice_bytes)
        self._next_key = 0

    def discard(self, keys: range) -> None:
        pass

    def register(
        self, label: str, tensors: Sequence[TensorSpec], *, op: Op, keep: bool = False, keys: int = 0
    ) -> list[Slice]:
        how = Cut(self._next_key, self.sizes.fixed)
        slices = cut(tensors, how, op=op, keep=keep, placement=Placement(self.size))
        self._next_key += len(slices)
        return slices

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        self.pending += contributions

    def wait_for(self, ticket: Ticket, reason: str = "", *, tensor: str = "") -> None:
        if ticket.is_done:
            return
        if self.error is not None:
            raise self.error
        self.waits += 1
        self.on_wait()
        for contribution in [one for one in self.pending if one.on_result.__self__ is ticket]:  # type: ignore[attr-defined]
            self.deliver(contribution)

    def deliver(self, contribution: Contribution) -> None:
        self.pending.remove(contribution)
        if contribution.source is not None and contribution.target is not None:
            np.multiply(contribution.source, MEAN, out=contribution.target)
        contribution.on_result(contribution)

    def deliver_all(self) -> None:
        for contribution in list(self.pending):
            self.deliver(contribution)


@contextmanager
def slow_group(slice_bytes: int = 64) -> Iterator[SlowGroup]:
    """Models that are wrapped in here belong to it."""
    group = SlowGroup(slice_bytes)
    with mock.patch("undertow.torch.synchroniser.group_for", return_value=group):
        yield group
