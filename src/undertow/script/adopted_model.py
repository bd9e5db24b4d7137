"""A model that the script has not wrapped, trained as if it were wrapped.

In: a module and those of its parameters that are trained.  Out: initial weights are rank 0's, gradients are the mean
over all ranks, and buffers follow rank 0.
Every backward pass is synchronised.  Where a script accumulates gradients over several passes, each adds its mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from undertow.engine.interface import Group
from undertow.plan.plan import Plan
from undertow.torch.ddp.synchroniser import Synchroniser
from undertow.torch.factors.swapping import restore
from undertow.torch.modules.hooks import EagerHook
from undertow.torch.passes.backward import runs_backward
from undertow.torch.slots.broadcast import Broadcast, find_own


class LooseParameters(torch.nn.Module):
    """A module created for parameters that belong to no module."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        super().__init__()
        for index, parameter in enumerate(parameters):
            self.register_parameter(f"parameter{index}", parameter)


_numbers = itertools.count()


class AdoptedModel:
    """A module that is trained without a wrapper around it; lives as long as the module."""

    process_group = None
    plan: str | Plan | None = None
    forward_sync_buffers = False  # `ModelBuffers` does it for the whole model
    is_joining = False

    def __init__(self, module: torch.nn.Module, trained: Collection[torch.Tensor], *, overlaps: bool) -> None:
        self.module = module
        self.buffers: ModelBuffers | None = None  # of the model that the module belongs to
        self.has_trained = False  # in this epoch
        self.number = next(_numbers)
        own = {id(parameter) for parameter in trained}
        self.parameters_to_ignore = {name for name, p in module.named_parameters() if id(p) not in own}
        self._synchroniser = Synchroniser(self)
        self._synchroniser.passes.synchronise_all()
        self._overlap = self._synchroniser.overlap() if overlaps else None
        self._handles: list[RemovableHandle] = []
        self.follow(module)

    def follow(self, module: torch.nn.Module) -> None:
        """Synchronise the forwards of a module that computes with these parameters."""
        self._handles.append(module.register_forward_pre_hook(EagerHook(self._begin_forward), prepend=True))
        if self._synchroniser.turn_hooks is not None:
            self._handles.append(module.register_forward_hook(EagerHook(self._end_forward), always_call=True))

    def copy_weights(self) -> None:
        """Copy rank 0's weights to all ranks."""
        self._synchroniser.copy_state(with_buffers=False)

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            if name not in self.parameters_to_ignore:
                yield f"{type(self.module).__name__}.{name}", parameter

    def find_unaveraged(self) -> list[str]:
        """Return the names of parameters with a gradient if no backward pass has been synchronised yet."""
        if self._synchroniser.passes.has_synchronised:
            return []
        return [name for name, p in self.named_parameters() if p.grad is not None and bool(p.grad.any())]

    def _begin_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        if not torch.is_grad_enabled() or self._synchroniser.passes.computes_again:
            return
        self._synchroniser.passes.check_closed()
        self._synchroniser.check_unchanged()
        self._synchroniser.adopt_unfrozen()
        self._synchroniser.passes.start_forward()
        if self._synchroniser.turn_hooks is not None:
            self._synchroniser.turn_hooks.begin_forward()

    def _end_forward(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if self._synchroniser.turn_hooks is not None and not self._synchroniser.passes.computes_again:
            self._synchroniser.turn_hooks.end_forward(outputs)

    def end_of_backward(self, absent: bool) -> None:
        """Do nothing: no rank can run out of input early."""

    def finish(self) -> None:
        """Wait until nothing of the last pass is in flight and every step has been made."""
        if self._overlap is not None:
            self._overlap.gates.wait_for_updates()

    def release(self) -> None:
        """Make the module an ordinary one again."""
        self._synchroniser.passes.ignore_all()
        for handle in self._handles:
            handle.remove()
        for module in self.module.modules():
            restore(module)


class ModelBuffers:
    """The buffers of one whole model.

    Rank 0's buffers are copied to all ranks before a forward that follows a training forward, as torch's DDP does.
    """

    def __init__(self, module: torch.nn.Module, group: Group) -> None:
        self.module = module
        self._label = f"the buffers of {type(module).__name__}"
        self._group = group
        self._broadcast: Broadcast | None = None
        self._own: Sequence[tuple[str, torch.Tensor]] = list(module.named_buffers())
        self._are_stale = True
        self._handles: list[RemovableHandle] = []
        self.follow(module)

    def follow(self, module: torch.nn.Module) -> None:
        """Copy the buffers before a forward of this module if they are out of date."""
        self._handles.append(module.register_forward_pre_hook(EagerHook(self._begin_forward), prepend=True))

    def copy(self) -> None:
        self._own = find_own(list(self.module.named_buffers()), self._own)
        if self._broadcast is None:
            self._broadcast = Broadcast(self._group, self._label, self._own)
        self._broadcast.run(self._own)

    def _begin_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        # A forward that is recomputed in a backward (checkpointing) got its buffers when it first ran.
        must_wait = self._are_stale and runs_backward()
        if self._are_stale and not must_wait:
            self.copy()
        self._are_stale = must_wait or (torch.is_grad_enabled() and module.training)

    def release(self) -> None:
        for handle in self._handles:
            handle.remove()
