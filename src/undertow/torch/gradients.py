"""Stages 1 to 3 and 8: gradients leave when they exist and come back as their mean.

In: "this parameter's gradient is ready", "backward has ended".
Out: contributions to the group while backward still runs; afterwards `.grad` holds the
mean over all workers.  A parameter without gradient contributes nothing, so graphs may
differ from step to step and from rank to rank.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch

from undertow.core.rounds import EVERYONE, Op
from undertow.errors import UndertowError
from undertow.runtime.group import Group
from undertow.runtime.waiting import Ticket
from undertow.torch.carriers import Carrier, Fused, Home, Whole
from undertow.torch.device import copier_for
from undertow.torch.gathered import Gathered
from undertow.torch.holders import is_gradient_alone
from undertow.torch.pending import can_wait
from undertow.torch.reduced import Reduction, can_reduce
from undertow.torch.sharded import Sharded
from undertow.torch.sources import Ask, Form, Source
from undertow.torch.table import Layout, Table
from undertow.torch.tensors import gradient_spec
from undertow.trace import notes
from undertow.trace.recorder import here


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
        process_group: Any = None,
        op: Op = Op.MEAN,
        compress: Callable[[torch.Tensor], torch.dtype | None] = lambda parameter: None,
    ) -> None:
        """`compress` tells the type in which a gradient travels, where that is not its own."""
        self.parameters = [parameter for _, parameter in named]
        types = [compress(parameter) for parameter in self.parameters]
        specs = [gradient_spec(name, p, travels_as) for (name, p), travels_as in zip(named, types, strict=True)]
        self.table = Table(group, label, specs, op)
        self._group = group
        self._process_group = process_group  # torch's, of the same workers, if there is one
        copiers = {device: copier_for(device) for device in {parameter.device for parameter in self.parameters}}
        self._homes = [
            Home(name, p, copiers[p.device], is_sparse=p in sparse, travels_as=travels_as)
            for (name, p), travels_as in zip(named, types, strict=True)
        ]
        self.reduction: Reduction | None = None  # of those that go through torch's process group
        self.sources: Mapping[int, Source] = {}  # of those that are gathered
        # What the backward pass that runs now wants of a layer that could hand over parts of a gradient.
        self.asks: Callable[[int], Ask] = lambda index: Ask.GRADIENT
        self._first = self._current = self._carriers = self._lay_out(self.table.first)
        # How urgent each one is, the lower the more; whoever knows the order of use says so.
        self.priorities = [0] * len(named)
        self._sent = [False] * len(named)
        self._tickets = [Ticket(0)] * len(named)

    def _lay_out(self, layout: Layout, reduced: Sequence[int] = ()) -> list[Carrier | None]:
        """Who carries each of them; nobody an empty one."""
        carriers: list[Carrier] = [Fused(self._group, item, self._homes) for item in layout.slices if item.is_fused]
        self.reduction = None
        if reduced:
            self.reduction = Reduction(self._group, self._process_group, self._homes, reduced)
            carriers += self.reduction.buckets
        for index, place in enumerate(layout.places):
            if index in self.sources:
                carry = Gathered if place.slices[0].spec.shard == EVERYONE else Sharded
                carriers.append(carry(self._group, index, self._homes[index], place.slices, self.sources[index]))
            elif place.slices:
                carriers.append(Whole(self._group, index, self._homes[index], place.slices))
        by_index = {index: carrier for carrier in carriers for index in carrier.members}
        return [by_index.get(index) for index in range(len(self._homes))]

    def change_slices(self, sources: Mapping[int, Source] | None = None, reduced: Sequence[int] = ()) -> None:
        """From this pass on, as the table was cut last; nothing is on its way now.

        `sources` are those of the tensors that travel in parts; `reduced` go through torch's process group.
        """
        self.table.change()
        self.sources = sources or {}
        self._current = self._lay_out(self.table.current, reduced)

    def make_source(self, index: int, form: Form) -> Source:
        """What a layer hands parts of this gradient to."""
        ref = weakref.ref(self)  # the layer keeps its source, also when the wrapper is gone

        def ask() -> Ask:
            gradients = ref()
            return Ask.GRADIENT if gradients is None else gradients.asks(index)

        return Source(self.parameters[index], form, ask)

    def can_reduce(self, index: int) -> bool:
        """Whether there is a process group of torch's that sums it without loss."""
        return self._process_group is not None and can_reduce(self.parameters[index])

    def gathers(self, index: int, *, now: bool) -> bool:
        """Whether the pass that runs `now`, or the next one, takes parts of this gradient instead of it."""
        return isinstance((self._carriers if now else self._current)[index], (Gathered, Sharded))

    def accumulated(self, index: int, added: torch.Tensor | None) -> None:
        """A pass that is not synchronised has added this to the gradient."""
        if index in self.sources:
            self.sources[index].accumulated(added)

    def sample(self) -> None:
        """Look at the results of this pass that are made here: see `find_digests`."""
        for carrier in self._current:
            if isinstance(carrier, Gathered):
                carrier.samples, carrier.digest = True, None

    def find_digests(self) -> dict[str, int]:
        """What was seen: on all ranks the same, or they drift apart."""
        digests = {}
        for index, carrier in enumerate(self._current):
            if isinstance(carrier, Gathered):
                carrier.samples = False
                if carrier.digest is not None:
                    digests[self.name(index)] = carrier.digest
        return digests

    def find_wholes(self) -> list[str]:
        """The names of gathered tensors of which some gradient came another way than in parts."""
        return [
            self.name(index)
            for index, carrier in enumerate(self._current)
            if isinstance(carrier, (Gathered, Sharded)) and carrier.wholes
        ]

    def begin(self, on_arrival: Callable[[Sequence[int]], None] | None = None, *, as_at_first: bool = False) -> None:
        """A new pass: every slice takes part in one round.

        `on_arrival` is told, in the engine thread, whose results are there.
        """
        self._carriers = self._first if as_at_first else self._current
        self._sent = [False] * len(self.parameters)
        for carrier in {id(carrier): carrier for carrier in self._carriers if carrier is not None}.values():
            told = None if on_arrival is None else functools.partial(on_arrival, carrier.members)
            ticket = Ticket(carrier.answers, told)
            carrier.begin(ticket, self.priorities)
            for index in carrier.members:
                self._tickets[index] = ticket

    def send(self, index: int, fresh: torch.Tensor | None = None) -> None:
        """This parameter's gradient is final, or is None: contribute it as it is.

        `fresh` is what autograd has just added to it, and still holds.
        """
        self.check_unsent(index)
        self._homes[index].check()
        self._sent[index] = True
        carrier = self._carriers[index]
        since_s = here.clock() if here.is_on else 0.0
        if carrier is not None:
            carrier.send(index, fresh)
        if since_s:
            here.note(notes.Hooked(since_s, here.clock(), self.name(index)))

    def check_unsent(self, index: int) -> None:
        """More was added to this gradient: an error if that is too late."""
        if self._sent[index]:
            raise UndertowError(
                f"the gradient of {self.name(index)!r} became ready twice in one backward pass, after it was sent. "
                "Use torch.utils.checkpoint with use_reentrant=False"
            )

    def send_rest(self) -> None:
        """Backward has ended: whatever has not been contributed is now."""
        for index, sent in enumerate(self._sent):
            if not sent:
                self.send(index)

    def wait(self) -> None:
        """Return when all results are there."""
        for index, ticket in enumerate(self._tickets):
            self._group.waiters.wait_for(ticket, notes.AT_THE_END, tensor=self.name(index))

    def land(self) -> bool:
        """Put all results in place.

        Returns whether a worker had joined, that is, took no part for lack of input.
        """
        since_s = here.clock() if here.is_on else 0.0
        for index in range(len(self.parameters)):
            self.land_one(index)
        if since_s:
            here.note(notes.Applied(since_s, here.clock(), tuple(home.name for home in self._homes)))
        return any(ticket.absent for ticket in self._tickets)

    def is_here(self, index: int) -> bool:
        """Whether this parameter's result is there."""
        return self._tickets[index].is_done

    def is_held(self, index: int) -> bool:
        """Whether this gradient's memory can be reached, or its object read, in a way that no gate guards.

        Asked when backward has ended: until then autograd holds it too.
        """
        gradient = self.parameters[index].grad
        if gradient is None:
            return False
        carrier = self._carriers[index]
        own = carrier is not None and carrier.uses_memory_of(index)
        return not can_wait(gradient) or not is_gradient_alone(gradient, own=int(own))

    @property
    def names(self) -> dict[torch.Tensor, str]:
        """Of all parameters."""
        return {home.parameter: home.name for home in self._homes}

    def name(self, index: int) -> str:
        return self._homes[index].name

    def wait_for(self, index: int) -> None:
        """Return when it is."""
        self._group.waiters.wait_for(self._tickets[index], notes.AT_THE_GATE, tensor=self.name(index))

    def land_one(self, index: int) -> None:
        """Put a result in place that is there, unless it came straight to where it belongs."""
        carrier = self._carriers[index]
        if carrier is not None:
            carrier.land(index)
