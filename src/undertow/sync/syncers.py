"""Stages 3 and 8: syncers (Poseidon's word), each of which synchronises some tensors of a table with one scheme.

In: final gradients.  Out: contributions to the group, and the mean in its slot.
A syncer belongs to one layout of a table and is reused in every pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from undertow.engine.client.waiting import Ticket
from undertow.engine.core.flow import Contribution
from undertow.engine.core.rounds import Array
from undertow.engine.core.slicing import Slice
from undertow.engine.interface import Group
from undertow.sync.slot import GradientSlot, IsReady
from undertow.sync.table import view_slice


class Syncer(Protocol):
    """Synchroniser of the gradients of `members`: Poseidon's Move, Send and Receive."""

    @property
    def members(self) -> Sequence[int]:
        """The tensors whose results arrive together."""

    @property
    def answers(self) -> int:
        """The number of answers per pass."""

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        """Begin a pass; all its answers go to the ticket.  `priorities` covers all tensors of the table."""

    def send(self, index: int, hint: Any) -> None:
        """Send a gradient that is final or missing; see `GradientTable.send` for the hint."""

    def uses_memory_of(self, index: int) -> bool:
        """Whether the gradient is sent from its own memory, to which the syncer then holds a reference."""

    def land(self, index: int) -> None:
        """Put a result that has arrived in its slot, unless it was received there."""


class DenseSyncer:
    """Syncer of a gradient with slices of its own, which are sent from and received in its memory if possible."""

    def __init__(self, group: Group, index: int, slot: GradientSlot[Any], slices: Sequence[Slice]) -> None:
        self.members = (index,)
        self.answers = len(slices)
        self._group = group
        self._slot = slot
        self._slices = slices
        self._elements = sum(item.spec.elements for item in slices)
        self._ticket = Ticket(0)
        self._priorities: Sequence[int] = ()
        self._host: Any = None  # where the result is received if not in the gradient itself
        self._first: Contribution | None = None
        self._is_in_place = False

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        self._ticket, self._priorities = ticket, priorities
        self._host, self._first, self._is_in_place = None, None, False

    def send(self, index: int, hint: Any) -> None:
        slot = self._slot
        is_ready: IsReady | None = None
        own = slot.expose(hint)
        self._is_in_place = own is not None
        source = target = None if own is None else own.array
        if own is None or not own.can_receive:
            memory = slot.allocate(self._elements)
            self._host, target = slot.segment(memory, 0, self._elements), slot.as_array(memory)
        if own is None and slot.has_gradient:
            source, is_ready = target, slot.copy_out(self._host)
        assert target is not None
        contributions = [self._contribution_for(item, source, target, self._priorities[index]) for item in self._slices]
        self._first = contributions[0]
        self._group.contribute(contributions, is_ready)

    def uses_memory_of(self, index: int) -> bool:
        return self._is_in_place

    def land(self, index: int) -> None:
        assert self._first is not None
        if self._first.present and self._host is not None:
            self._slot.copy_in(self._host)

    def _contribution_for(self, item: Slice, source: Array | None, target: Array, priority: int) -> Contribution:
        sent = None if source is None else view_slice(item, source)
        present = int(sent is not None)
        return Contribution(item.spec.key, sent, view_slice(item, target), present, self._ticket.answer, priority)


class FusedSyncer:
    """Syncer of several tiny gradients in one slice, which is sent when the last of them is ready."""

    answers = 1

    def __init__(self, group: Group, item: Slice, slots: Sequence[GradientSlot[Any]]) -> None:
        self.members = [part.tensor for part in item.ranges]
        self._group = group
        self._item = item
        self._slots = {index: slots[index] for index in self.members}
        first = slots[self.members[0]]
        memory = first.allocate(item.spec.elements)
        self._array = first.as_array(memory)
        self._bits = {index: bit for bit, index in enumerate(self.members)}
        self._segments = {
            part.tensor: slots[part.tensor].segment(memory, part.at, part.elements) for part in item.ranges
        }
        self._ticket = Ticket(0)
        self._priorities: Sequence[int] = ()
        self._contribution: Contribution | None = None
        self._present = 0
        self._left = 0
        self._copies: list[IsReady | None] = []  # copies from a device that may not be complete

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        self._ticket, self._priorities = ticket, priorities
        self._present = 0
        self._left = len(self.members)
        self._copies = []
        self._contribution = None

    def send(self, index: int, hint: Any) -> None:
        self._left -= 1
        slot = self._slots[index]
        self._present |= slot.has_gradient << self._bits[index]
        self._copies.append(slot.copy_out(self._segments[index]))
        if not self._left:
            self._contribute()

    def uses_memory_of(self, index: int) -> bool:
        return False

    def land(self, index: int) -> None:
        assert self._contribution is not None
        if self._contribution.present >> self._bits[index] & 1:
            self._slots[index].copy_in(self._segments[index])

    def _contribute(self) -> None:
        source = self._array if self._present else None
        priority = min(self._priorities[index] for index in self.members)
        self._contribution = Contribution(
            self._item.spec.key, source, self._array, self._present, self._ticket.answer, priority
        )
        self._group.contribute([self._contribution], all_ready(self._copies))


def all_ready(copies: Sequence[IsReady | None]) -> IsReady | None:
    """Return a function that tells whether all these copies are complete; None if they already are."""
    incomplete = [is_ready for is_ready in copies if is_ready is not None]
    return (lambda: all(is_ready() for is_ready in incomplete)) if incomplete else None
