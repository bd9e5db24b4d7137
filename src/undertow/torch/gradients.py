"""Stages 1 to 3 and 8: gradients leave when they exist and come back as their mean.

In: "this parameter's gradient is ready", "backward has ended".
Out: contributions to the group while backward still runs; afterwards `.grad` holds the
mean over all workers.  A parameter without gradient contributes nothing, so graphs may
differ from step to step and from rank to rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import torch

from undertow import trace
from undertow.core.flow import Contribution
from undertow.core.rounds import Array, Op
from undertow.errors import ConfigError, UndertowError
from undertow.plan.slicing import Slice
from undertow.runtime.group import Group
from undertow.runtime.waiting import Ticket
from undertow.torch.device import Copier, copier_for, host_memory
from undertow.torch.table import Table
from undertow.torch.tensors import (
    ALONE,
    as_array,
    count_references,
    count_uses,
    fresh_uses,
    gradient_dtype,
    gradient_spec,
    is_plain,
    known_once,
    real,
)


class Gradients:
    """The gradients of some parameters, summed together in one pass after the other.

    Parameters come in the order in which their gradients are expected.  To be used where autograd
    does not record, as in its own hooks.
    """

    def __init__(
        self,
        group: Group,
        label: str,
        named: Sequence[tuple[str, torch.nn.Parameter]],
        *,
        sparse: Container[torch.Tensor] = (),
    ) -> None:
        self.parameters = [parameter for _, parameter in named]
        self.table = Table(group, label, [gradient_spec(name, parameter) for name, parameter in named], Op.MEAN)
        self._group = group
        self._names = [name for name, _ in named]
        copiers = {device: copier_for(device) for device in {parameter.device for parameter in self.parameters}}
        self._homes = [_Home(parameter, copiers[parameter.device], parameter in sparse) for _, parameter in named]
        self._fused: dict[int, _Fused] = {}
        self._units: list[list[int]] = []  # whose results come together
        self._lay_out()
        # How urgent each one is, the lower the more; whoever knows the order of use says so.
        self.priorities = [0] * len(named)
        self._sent = [False] * len(named)
        self._fresh_uses = fresh_uses()
        self._tickets = [Ticket(0)] * len(named)
        self._whole: dict[int, _Whole] = {}

    def _lay_out(self) -> None:
        fused = [item for item in self.table.slices if item.is_fused]
        self._fused = {item.spec.key: _Fused(item, self._homes) for item in fused}
        self._units = [[part.tensor for part in item.parts] for item in fused]
        self._units += [[index] for index, place in enumerate(self.table.places) if place.slices]

    def change_slices(self) -> None:
        """From this pass on, as the table was cut last; nothing is on its way now."""
        self.table.change()
        self._lay_out()

    def begin(self, on_arrival: Callable[[Sequence[int]], None] | None = None) -> None:
        """A new pass: every slice takes part in one round.

        `on_arrival` is told, in the engine thread, whose results are there.
        """
        self._sent = [False] * len(self.parameters)
        self._whole = {}
        for members in self._units:
            told = None if on_arrival is None else functools.partial(on_arrival, members)
            ticket = Ticket(len(self.table.places[members[0]].slices) or 1, told)
            for index in members:
                self._tickets[index] = ticket
        for fused in self._fused.values():
            fused.reset()

    def send(self, index: int, fresh: torch.Tensor | None = None) -> None:
        """This parameter's gradient is final, or is None: contribute it as it is.

        `fresh` is what autograd has just added to it, and still holds.
        """
        self.check_unsent(index)
        self._homes[index].check(self._names[index])
        self._sent[index] = True
        if trace.is_on:
            trace.record("gradient", tensor=self._names[index], rank=self._group.rank)
        place = self.table.places[index]
        if place.fused is not None:
            self._stage(self._fused[place.fused.spec.key], place.bit)
        elif place.slices:
            self._send_whole(index, place.slices, fresh)

    def check_unsent(self, index: int) -> None:
        """More was added to this gradient: an error if that is too late."""
        if self._sent[index]:
            raise UndertowError(
                f"the gradient of {self._names[index]!r} became ready twice in one backward pass, after it was sent. "
                "Use torch.utils.checkpoint with use_reentrant=False"
            )

    def send_rest(self) -> None:
        """Backward has ended: whatever has not been contributed is now."""
        for index, sent in enumerate(self._sent):
            if not sent:
                self.send(index)

    def wait(self) -> None:
        """Return when all results are there."""
        for ticket in self._tickets:
            self._group.waiters.wait_for(ticket)

    def land(self) -> bool:
        """Put all results in place.

        Returns whether a worker had joined, that is, took no part for lack of input.
        """
        for index in range(len(self.parameters)):
            self.land_one(index)
        return any(ticket.absent for ticket in self._tickets)

    def is_here(self, index: int) -> bool:
        """Whether this parameter's result is there."""
        return self._tickets[index].is_done

    def is_held(self, index: int) -> bool:
        """Whether somebody else knows this gradient, or its memory, and could look into it at any time.

        Asked when backward has ended: until then autograd holds it too.
        """
        gradient = self.parameters[index].grad
        if gradient is None or gradient.layout is not torch.strided:
            return False
        own = index in self._whole and self._whole[index].is_in_place  # the array that it is sent from
        return count_references(gradient) > known_once() or count_uses(gradient) > ALONE + own

    def name(self, index: int) -> str:
        return self._names[index]

    def wait_for(self, index: int) -> None:
        """Return when it is."""
        self._group.waiters.wait_for(self._tickets[index])

    def land_one(self, index: int) -> None:
        """Put a result in place that is there, unless it came straight to where it belongs."""
        place = self.table.places[index]
        if place.fused is not None:
            self._fused[place.fused.spec.key].land(place.bit)
        elif index in self._whole:
            whole = self._whole[index]
            if whole.first.present and whole.host is not None:
                self._homes[index].put(whole.host)

    def _send_whole(self, index: int, slices: Sequence[Slice], fresh: torch.Tensor | None) -> None:
        gradient, dtype = self.parameters[index].grad, slices[0].spec.dtype
        is_ready: Callable[[], bool] | None = None
        host: torch.Tensor | None = None
        source: Array | None = None
        is_in_place = gradient is not None and is_plain(gradient)
        if gradient is not None and is_in_place:
            uses = count_uses(gradient)
            source = target = as_array(real(gradient), dtype)
            # Autograd hands on gradients as views where it can: this may be the very memory that
            # earlier layers' gradients are still to be computed from, or sent from.
            is_fresh = fresh is not None and fresh.data_ptr() == gradient.data_ptr()
            is_exclusive = uses <= (self._fresh_uses if is_fresh else ALONE)
        if not is_in_place or not is_exclusive:
            memory = self._homes[index].make_host_memory(slices[-1].parts[0].offset + slices[-1].spec.elements)
            host, target = self._homes[index].shape(memory), as_array(memory, dtype)
        if gradient is not None and host is not None and not is_in_place:
            source, is_ready = target, self._homes[index].take(host)
        contributions = [self._piece(index, item, source, target) for item in slices]
        self._whole[index] = _Whole(host, contributions[0], is_in_place)
        self._group.contribute(contributions, is_ready)

    def _piece(self, index: int, item: Slice, source: Array | None, target: Array) -> Contribution:
        part = item.parts[0]
        piece = slice(part.offset, part.offset + part.elements)
        sent = None if source is None else source[piece]
        on_result, priority = self._tickets[index].answer, self.priorities[index]
        return Contribution(item.spec.key, sent, target[piece], int(sent is not None), on_result, priority)

    def _stage(self, fused: _Fused, bit: int) -> None:
        fused.stage(bit)
        if fused.is_full:
            members = fused.members
            contribution = fused.contribute(self._tickets[members[0]].answer)
            contribution.priority = min(self.priorities[index] for index in members)
            self._group.contribute([contribution], fused.is_ready)


class _Whole(NamedTuple):
    """A gradient on its way in slices of its own."""

    host: torch.Tensor | None  # where the result lands if not in the gradient itself
    first: Contribution
    is_in_place: bool  # sent from the gradient's own memory


class _Home:
    """Where one parameter's gradient lives, if it is not sent and received in place."""

    def __init__(self, parameter: torch.nn.Parameter, copier: Copier, is_sparse: bool) -> None:
        self.parameter = parameter
        self._shape = parameter.shape
        self._dtype = gradient_dtype(parameter)
        self._host_shape = real(parameter.detach()).shape
        self._copier = copier
        self._is_sparse = is_sparse  # its owner says so; without a gradient nothing else tells

    def check(self, name: str) -> None:
        """The bytes of another gradient than all ranks have agreed on would be taken for something else."""
        gradient = self.parameter.grad
        if gradient is not None and (gradient.dtype is not self._dtype or gradient.shape != self._shape):
            raise ConfigError(
                f"the gradient of {name!r} is {list(gradient.shape)} {gradient.dtype}, but it was {list(self._shape)} "
                f"{self._dtype} when the module was wrapped. Change the module first, then wrap it"
            )

    def make_host_memory(self, elements: int) -> torch.Tensor:
        return host_memory(elements, self._dtype.to_real(), self.parameter.device)

    def shape(self, memory: torch.Tensor) -> torch.Tensor:
        """Flat host memory in the form of the gradient, for `take` and `put`."""
        return memory.view(self._host_shape)

    def take(self, host: torch.Tensor) -> Callable[[], bool] | None:
        """Copy the gradient, or zeros, to the host; the result tells whether it is there."""
        gradient = self.parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(self.parameter, dtype=self._dtype)
        dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
        return self._copier.out(real(dense), host)

    def put(self, host: torch.Tensor) -> None:
        """The result becomes the gradient, in the form that it has."""
        result = torch.view_as_complex(host) if self._dtype.is_complex else host
        gradient = self.parameter.grad
        if gradient is None and not self._is_sparse:
            gradient = self.parameter.grad = torch.empty_like(self.parameter, dtype=self._dtype)
        if gradient is not None and gradient.layout is torch.strided:
            self._copier.back(result, gradient)
        else:
            # Rows that nobody touched stay out; a touched row whose mean is zero does too.
            dimensions = 1 if gradient is None else gradient.sparse_dim()
            self.parameter.grad = result.to_sparse(dimensions).to(self.parameter.device)


class _Fused:
    """Several tiny gradients in one slice: they leave when the last of them is there."""

    def __init__(self, item: Slice, homes: Sequence[_Home]) -> None:
        self._contribution: Contribution | None = None
        self._item = item
        self.members = [part.tensor for part in item.parts]
        self._homes = [homes[index] for index in self.members]
        memory = self._homes[0].make_host_memory(item.spec.elements)
        self._array = as_array(memory, item.spec.dtype)
        self._segments = [
            home.shape(memory[part.at : part.at + part.elements])
            for home, part in zip(self._homes, item.parts, strict=True)
        ]
        self._present = 0
        self._left = 0
        self._copies: list[Callable[[], bool]] = []  # copies from a device that may still be under way

    @property
    def is_full(self) -> bool:
        return self._left == 0

    @property
    def is_ready(self) -> Callable[[], bool] | None:
        copies = self._copies
        return (lambda: all(is_done() for is_done in copies)) if copies else None

    def reset(self) -> None:
        self._present = 0
        self._left = len(self._segments)
        self._copies = []
        self._contribution = None

    def stage(self, bit: int) -> None:
        self._left -= 1
        self._present |= (self._homes[bit].parameter.grad is not None) << bit
        is_done = self._homes[bit].take(self._segments[bit])
        if is_done is not None:
            self._copies.append(is_done)

    def contribute(self, on_result: Callable[[Contribution], None]) -> Contribution:
        source = self._array if self._present else None
        self._contribution = Contribution(self._item.spec.key, source, self._array, self._present, on_result)
        return self._contribution

    def land(self, bit: int) -> None:
        assert self._contribution is not None
        if self._contribution.present >> bit & 1:
            self._homes[bit].put(self._segments[bit])
