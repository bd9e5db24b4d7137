"""Modules that nobody wrapped, trained as if somebody had.

In: the parameters of an optimizer.  Out: the modules that hold them, each with the machinery of a wrapped one:
weights are rank 0's, gradients the mean of all ranks, buffers follow.
Every backward pass is synchronised.  Where a script accumulates gradients over several, each of them adds its mean.
"""

from __future__ import annotations

import gc
import itertools
import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from undertow.plan.plan import Plan
from undertow.runtime.group import Group
from undertow.settings import Priority
from undertow.torch.broadcast import Broadcast, find_own
from undertow.torch.hooks import ForwardHook, never_compiled
from undertow.torch.overlap import Overlap, is_opaque
from undertow.torch.passes import runs_backward
from undertow.torch.swapping import restore
from undertow.torch.synchroniser import Synchroniser


class Loose(torch.nn.Module):
    """Parameters that are in no module."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        super().__init__()
        for index, parameter in enumerate(parameters):
            self.register_parameter(f"parameter{index}", parameter)


_numbers = itertools.count()


class Adopted:
    """Some parameters of one module, in place of a wrapper around it; lives as long as the module."""

    process_group = None
    plan: str | Plan | None = None
    forward_sync_buffers = False  # see `Buffers`: they are the whole model's
    is_joining = False

    def __init__(self, module: torch.nn.Module, trained: Collection[torch.Tensor], *, overlaps: bool) -> None:
        self.module = module
        self.buffers: Buffers | None = None  # of the model that it is part of
        self.has_trained = False  # in this epoch
        self.number = next(_numbers)
        own = {id(parameter) for parameter in trained}
        self.parameters_to_ignore = {name for name, p in module.named_parameters() if id(p) not in own}
        self._synchroniser = Synchroniser(self)
        self._synchroniser.passes.synchronise_all()
        self._overlap: Overlap | None = None
        if overlaps and self._synchroniser.group.size > 1:
            prioritises = self._synchroniser.group.priority is not Priority.OFF
            self._overlap = Overlap(module, prioritises=prioritises)
            self._synchroniser.passes.overlap_with(self._overlap)
        self._handles: list[RemovableHandle] = []
        self.follow(module)

    def follow(self, module: torch.nn.Module) -> None:
        """A forward of this module computes with the parameters."""
        self._handles.append(module.register_forward_pre_hook(_Follow(self), prepend=True))
        if self._synchroniser.taking is not None:
            self._handles.append(module.register_forward_hook(_EndForward(self), always_call=True))

    def copy_weights(self) -> None:
        """Rank 0's, to all."""
        self._synchroniser.copy_state(with_buffers=False)

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            if name not in self.parameters_to_ignore:
                yield f"{type(self.module).__name__}.{name}", parameter

    def find_unaveraged(self) -> list[str]:
        """Those with a gradient, if no backward pass has ever come by that could have averaged it."""
        if self._synchroniser.passes.has_synchronised:
            return []
        return [name for name, p in self.named_parameters() if p.grad is not None and bool(p.grad.any())]

    def begin_forward(self) -> None:
        if not torch.is_grad_enabled() or self._synchroniser.passes.computes_again:
            return
        self._synchroniser.passes.check_closed()
        self._synchroniser.check_unchanged()
        self._synchroniser.adopt_unfrozen()
        self._synchroniser.passes.start_forward()
        if self._synchroniser.taking is not None:
            self._synchroniser.taking.begin_forward()

    def end_forward(self, outputs: Any) -> None:
        if self._synchroniser.taking is not None and not self._synchroniser.passes.computes_again:
            self._synchroniser.taking.end_forward(outputs)

    def end_of_backward(self, absent: bool) -> None:
        """Nothing to do: nobody joins."""

    def finish(self) -> None:
        """Return when nothing of the last pass is on its way, and every step is made."""
        if self._overlap is not None:
            self._overlap.gates.flush()

    def release(self) -> None:
        """The script turned out to know of ranks."""
        self._synchroniser.passes.ignore_all()
        for handle in self._handles:
            handle.remove()
        for part in self.module.modules():
            restore(part)


class Buffers:
    """Of one whole model: rank 0's, before a forward that follows a training one, as torch's DDP has it."""

    def __init__(self, module: torch.nn.Module, group: Group) -> None:
        self.module = module
        self._label = f"the buffers of {type(module).__name__}"
        self._group = group
        self._broadcast: Broadcast | None = None
        self._own: Sequence[tuple[str, torch.Tensor]] = list(module.named_buffers())
        self._are_old = True
        self._handles: list[RemovableHandle] = []
        self.follow(module)

    def follow(self, module: torch.nn.Module) -> None:
        """A forward of this module computes with the buffers."""
        self._handles.append(module.register_forward_pre_hook(_Copy(self), prepend=True))

    def copy(self) -> None:
        self._own = find_own(list(self.module.named_buffers()), self._own)
        if self._broadcast is None:
            self._broadcast = Broadcast(self._group, self._label, self._own)
        self._broadcast.run(self._own)

    def begin_forward(self, module: torch.nn.Module) -> None:
        # What a backward computes again (checkpoints) has had them when it was computed first.
        must_wait = self._are_old and runs_backward()
        if self._are_old and not must_wait:
            self.copy()
        self._are_old = must_wait or (torch.is_grad_enabled() and module.training)

    def release(self) -> None:
        for handle in self._handles:
            handle.remove()


class _Follow(ForwardHook):
    def __init__(self, adopted: Adopted) -> None:
        self._adopted = adopted

    @never_compiled
    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        self._adopted.begin_forward()


class _EndForward(ForwardHook):
    def __init__(self, adopted: Adopted) -> None:
        self._adopted = adopted

    @never_compiled
    def __call__(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        self._adopted.end_forward(outputs)


class _Copy(ForwardHook):
    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    @never_compiled
    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        self._buffers.begin_forward(module)


@dataclass(frozen=True)
class _Root:
    """An outermost module that holds parameters of an optimizer."""

    module: torch.nn.Module
    places: tuple[int, ...]  # of these parameters in the optimizer; never empty

    @property
    def order(self) -> tuple[Any, ...]:
        """The same on all ranks; the one that holds most comes first."""
        names = tuple(name for name, _ in self.module.named_parameters())
        return self.places[0], -len(self.places), self.places, type(self.module).__qualname__, names


def find_models(parameters: Sequence[torch.Tensor]) -> list[list[torch.nn.Module]]:
    """The outermost modules that hold some of them, in an order that is the same on all ranks.

    Those that two ranks could take for each other come together.
    """
    gc.collect()  # modules that nobody uses any more may be there on some ranks only
    order = operator.attrgetter("order")
    roots = sorted(_find_roots(parameters), key=order)
    return [[root.module for root in twins] for _, twins in itertools.groupby(roots, order)]


def _find_roots(parameters: Sequence[torch.Tensor]) -> list[_Root]:
    ids = {id(parameter): place for place, parameter in enumerate(parameters)}
    holding: dict[int, _Root] = {}
    # By type: some objects pretend to be of another class, and do something when asked.
    for module in [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]:
        places = sorted({ids[id(parameter)] for parameter in _parameters_of(module) if id(parameter) in ids})
        if places:
            holding[id(module)] = _Root(module, tuple(places))
    inner = {id(part) for root in holding.values() for part in root.module.modules() if part is not root.module}
    return [root for key, root in holding.items() if key not in inner]


def find_holder(module: torch.nn.Module, parameters: Collection[torch.Tensor]) -> torch.nn.Module:
    """The innermost part of it that holds all of these."""
    wanted = {id(parameter) for parameter in parameters}
    while not is_opaque(module):
        inner = [part for part in module.children() if wanted <= {id(p) for p in _parameters_of(part)}]
        if len(inner) != 1 or any(id(p) in wanted for p in module.parameters(recurse=False)):
            break
        module = inner[0]
    return module


def _parameters_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    try:
        yield from module.parameters()
    except (AttributeError, TypeError):
        return  # one whose constructor has not come that far yet
