"""Stages 3 and 8: what carries gradients in a pass, whole or several together.

In: gradients that are final.  Out: contributions of the group, and the mean where it belongs.
A carrier is for one layout of a table and used in one pass after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from undertow.core.flow import Contribution
from undertow.core.rounds import Array
from undertow.errors import ConfigError
from undertow.plan.slicing import Slice
from undertow.runtime.group import Group
from undertow.runtime.waiting import Ticket
from undertow.torch.device import Copier, host_memory
from undertow.torch.holders import is_received_alone
from undertow.torch.tensors import as_array, as_complex, gradient_dtype, is_plain, real


class Carrier(Protocol):
    @property
    def members(self) -> Sequence[int]:
        """The tensors that it carries: their results come together."""

    @property
    def answers(self) -> int:
        """How many answers a pass brings."""

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        """A new pass.  All answers go to the ticket; the priorities are those of all tensors."""

    def send(self, index: int, fresh: torch.Tensor | None) -> None:
        """This gradient is final, or is None; `fresh` is what autograd has just added to it, and still holds."""

    def uses_memory_of(self, index: int) -> bool:
        """Whether the gradient's own memory is sent, and so held here, too."""

    def land(self, index: int) -> None:
        """The result is there: put it in place, unless it came straight to where it belongs."""


class Home:
    """Where one parameter's gradient lives."""

    def __init__(
        self,
        name: str,
        parameter: torch.nn.Parameter,
        copier: Copier,
        *,
        is_sparse: bool,
        travels_as: torch.dtype | None = None,
    ) -> None:
        self.name = name
        self.parameter = parameter
        self.dtype = gradient_dtype(parameter)
        self._travels_as = travels_as or self.dtype
        self.copier = copier
        self._is_sparse = is_sparse  # its owner says so; without a gradient nothing else tells
        self._shape = parameter.shape
        self._host_shape = real(parameter.detach()).shape

    def check(self) -> None:
        """The bytes of another gradient than all ranks have agreed on would be taken for something else."""
        gradient = self.parameter.grad
        if gradient is not None and (gradient.dtype is not self.dtype or gradient.shape != self._shape):
            raise ConfigError(
                f"the gradient of {self.name!r} is {list(gradient.shape)} {gradient.dtype}, but it was "
                f"{list(self._shape)} {self.dtype} when the module was wrapped. Change the module first, then wrap it"
            )

    def make_host_memory(self, elements: int) -> torch.Tensor:
        return host_memory(elements, self._travels_as.to_real(), self.parameter.device)

    def is_sent_as_it_is(self, gradient: torch.Tensor) -> bool:
        """Whether it can travel from its own memory, and the result come back there."""
        return is_plain(gradient) and self._travels_as is self.dtype

    def shape(self, memory: torch.Tensor) -> torch.Tensor:
        """Flat host memory in the form of the gradient, for `take` and `put`."""
        return memory.view(self._host_shape)

    def take(self, host: torch.Tensor) -> Callable[[], bool] | None:
        """Copy the gradient, or zeros, to the host; the result tells whether it is there."""
        gradient = self.parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(self.parameter, dtype=self.dtype)
        dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
        return self.copier.out(real(dense), host)

    def put(self, host: torch.Tensor) -> None:
        """The result becomes the gradient, in the form that it has."""
        result = as_complex(host) if self.dtype.is_complex else host
        gradient = self.parameter.grad
        if gradient is None and not self._is_sparse:
            gradient = self.parameter.grad = torch.empty_like(self.parameter, dtype=self.dtype)
        if gradient is not None and gradient.layout is torch.strided:
            self.copier.back(result, gradient)
        else:
            # Rows that nobody touched stay out; a touched row whose mean is zero does too.
            dimensions = 1 if gradient is None else gradient.sparse_dim()
            self._become(result.to_sparse(dimensions).to(self.parameter.device))

    def replace(self, result: torch.Tensor) -> None:
        """A gradient that was made here becomes the gradient, in the memory that it has."""
        self._become(result)

    def _become(self, result: torch.Tensor) -> None:
        gradient = self.parameter.grad
        if gradient is not None and gradient.layout is result.layout:
            gradient.copy_(result)  # the object may be held by the user
        else:
            self.parameter.grad = result


class Whole:
    """One gradient in slices of its own, sent from its own memory and received there where that is possible."""

    def __init__(self, group: Group, index: int, home: Home, slices: Sequence[Slice]) -> None:
        self.members = (index,)
        self.answers = len(slices)
        self._group = group
        self._home = home
        self._slices = slices
        self._dtype = slices[0].spec.dtype
        self._elements = sum(item.spec.elements for item in slices)
        self._ticket = Ticket(0)
        self._priorities: Sequence[int] = ()
        self._host: torch.Tensor | None = None  # where the result lands if not in the gradient itself
        self._first: Contribution | None = None
        self._is_in_place = False  # sent from the gradient's own memory

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        self._ticket, self._priorities = ticket, priorities
        self._host, self._first, self._is_in_place = None, None, False

    def send(self, index: int, fresh: torch.Tensor | None) -> None:
        gradient = self._home.parameter.grad
        is_ready: Callable[[], bool] | None = None
        source: Array | None = None
        self._is_in_place = gradient is not None and self._home.is_sent_as_it_is(gradient)
        if gradient is not None and self._is_in_place:
            # Autograd hands on gradients as views where it can: this may be the very memory that
            # earlier layers' gradients are still to be computed from, or sent from.
            is_exclusive = is_received_alone(gradient, fresh)
            source = target = as_array(real(gradient), self._dtype)
        if not self._is_in_place or not is_exclusive:
            memory = self._home.make_host_memory(self._elements)
            self._host, target = self._home.shape(memory), as_array(memory, self._dtype)
        if gradient is not None and self._host is not None and not self._is_in_place:
            source, is_ready = target, self._home.take(self._host)
        contributions = [self._piece(item, source, target, self._priorities[index]) for item in self._slices]
        self._first = contributions[0]
        self._group.contribute(contributions, is_ready)

    def uses_memory_of(self, index: int) -> bool:
        return self._is_in_place

    def land(self, index: int) -> None:
        assert self._first is not None
        if self._first.present and self._host is not None:
            self._home.put(self._host)

    def _piece(self, item: Slice, source: Array | None, target: Array, priority: int) -> Contribution:
        part = item.parts[0]
        piece = slice(part.offset, part.offset + part.elements)
        sent = None if source is None else source[piece]
        return Contribution(item.spec.key, sent, target[piece], int(sent is not None), self._ticket.answer, priority)


class Fused:
    """Several tiny gradients in one slice: they leave when the last of them is there."""

    answers = 1

    def __init__(self, group: Group, item: Slice, homes: Sequence[Home]) -> None:
        self.members = [part.tensor for part in item.parts]
        self._group = group
        self._item = item
        self._homes = {index: homes[index] for index in self.members}
        memory = homes[self.members[0]].make_host_memory(item.spec.elements)
        self._array = as_array(memory, item.spec.dtype)
        self._bits = {index: bit for bit, index in enumerate(self.members)}
        self._segments = {
            part.tensor: homes[part.tensor].shape(memory[part.at : part.at + part.elements]) for part in item.parts
        }
        self._ticket = Ticket(0)
        self._priorities: Sequence[int] = ()
        self._contribution: Contribution | None = None
        self._present = 0
        self._left = 0
        self._copies: list[Callable[[], bool]] = []  # copies from a device that may still be under way

    def begin(self, ticket: Ticket, priorities: Sequence[int]) -> None:
        self._ticket, self._priorities = ticket, priorities
        self._present = 0
        self._left = len(self.members)
        self._copies = []
        self._contribution = None

    def send(self, index: int, fresh: torch.Tensor | None) -> None:
        self._left -= 1
        self._present |= (self._homes[index].parameter.grad is not None) << self._bits[index]
        is_done = self._homes[index].take(self._segments[index])
        if is_done is not None:
            self._copies.append(is_done)
        if not self._left:
            self._contribute()

    def uses_memory_of(self, index: int) -> bool:
        return False

    def land(self, index: int) -> None:
        assert self._contribution is not None
        if self._contribution.present >> self._bits[index] & 1:
            self._homes[index].put(self._segments[index])

    def _contribute(self) -> None:
        source = self._array if self._present else None
        priority = min(self._priorities[index] for index in self.members)
        self._contribution = Contribution(
            self._item.spec.key, source, self._array, self._present, self._ticket.answer, priority
        )
        self._group.contribute([self._contribution], all_done(self._copies))


def all_done(copies: Sequence[Callable[[], bool]]) -> Callable[[], bool] | None:
    """Tells whether all these copies have ended; None if there are none."""
    return (lambda: all(is_done() for is_done in copies)) if copies else None
