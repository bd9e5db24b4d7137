"""A group of two workers whose answers arrive when a wait needs them, or when a test delivers them.

The other worker's gradient is always three times ours, so the mean is twice ours.  A read of this worker's own
gradient, or of a value without its update, is therefore noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from tests.support.fake_group import FakeGroup
from undertow.engine.client.waiting import Ticket
from undertow.engine.core.flow import Contribution
from undertow.sizing import Sizes
from undertow.tools.faults.gated_training import MEAN, OTHER, Twin

__all__ = ["MEAN", "SlowGroup", "Twin", "slow_group"]


class SlowGroup(FakeGroup):
    """A fake group whose contributions wait until they are delivered."""

    def __init__(self, slice_bytes: int = 64) -> None:
        super().__init__([OTHER], sizes=Sizes(fixed=slice_bytes))
        self.pending: list[Contribution] = []
        self.waits = 0  # number of waits whose tickets lacked answers
        self.on_wait: Callable[[], object] = lambda: None

    def contribute(self, contributions: Sequence[Contribution], is_ready: Callable[[], bool] | None = None) -> None:
        self.pending += contributions

    def wait_for(self, ticket: Ticket, reason: str = "", *, tensor: str = "") -> None:
        if ticket.is_done:
            return
        self.check()
        self.waits += 1
        self.on_wait()
        self.check()
        for contribution in [one for one in self.pending if getattr(one.on_result, "__self__", None) is ticket]:
            self.deliver(contribution)
        while not ticket.is_done:
            assert self.pending, "no contribution is left that the ticket waits for"
            self.deliver(self.pending[0])

    def deliver(self, contribution: Contribution) -> None:
        """Answer this contribution, and before it all earlier ones to the same key."""
        earlier = next(one for one in self.pending if one.key == contribution.key)
        self.pending.remove(earlier)
        super().deliver(earlier)
        if earlier is not contribution:
            self.deliver(contribution)

    def deliver_all(self) -> None:
        for contribution in list(self.pending):
            self.deliver(contribution)


@contextmanager
def slow_group(slice_bytes: int = 64) -> Iterator[SlowGroup]:
    """Let models that are wrapped within the block belong to a slow group."""
    group = SlowGroup(slice_bytes)
    with mock.patch("undertow.torch.ddp.synchroniser.group_for", return_value=group):
        yield group
