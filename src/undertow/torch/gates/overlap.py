"""Lets the next forward pass start early, with gates, the order of use, and the hooks that need both.

In: a module whose backward passes are synchronised.  Out: backward returns without waiting, slices are sent in the
order in which the next forward pass needs them, and each module waits only for its own parameters.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from undertow.sync.completion import Arrivals
from undertow.sync.order import UseOrder
from undertow.torch.gates.gates import Gates
from undertow.torch.gradient.gradients import Gradients
from undertow.torch.modules.forwards import find_readers
from undertow.torch.modules.hooks import ForwardHook, never_compiled
from undertow.torch.pending.native_functions import guard_native_functions
from undertow.torch.pending.pending_tensors import open_deferred, open_gates


class Overlap:
    """The gates and the order of use of one wrapped module."""

    def __init__(self, module: torch.nn.Module, *, prioritises: bool) -> None:
        guard_native_functions()
        self.gates = Gates()
        weakref.finalize(self, self.gates.retire).atexit = False
        self._prioritises = prioritises
        self.order = UseOrder(module.parameters())
        for owner, parameters in find_readers(module):
            # Before the user's hooks, which may also read the parameters.
            owner.register_forward_pre_hook(_Use(self, parameters), prepend=True)

    def begin(self) -> None:
        # Updates of parameters that the forward pass did not use may still be pending.
        self.gates.wait_for_updates()
        self.order.begin_backward()

    def expect(self, gradients: Gradients) -> Arrivals:
        """Set the priorities of gradients that backward is about to compute; return their queue of completions."""
        if self._prioritises:
            gradients.priorities = self.order.prioritise(gradients.parameters)
        return self.gates.expect(gradients)

    def end(self, gradients: Sequence[Gradients]) -> None:
        """End a backward pass: all its gradients have been sent."""
        # Uses that backward recorded while it recomputed belong to no forward pass.
        self.order.end_pass()
        for one in gradients:
            self.gates.close(one)


class _Use(ForwardHook):
    """A forward pre-hook that waits for the parameters that the module reads, and for no others."""

    def __init__(self, overlap: Overlap, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._overlap = weakref.ref(overlap)
        self._parameters = parameters

    @never_compiled
    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        overlap = self._overlap()
        if overlap is None or not module.training:
            # In evaluation, some modules take fast paths that read the parameters of their submodules.
            open_gates(list(module.parameters()))
            return
        if torch.is_grad_enabled():
            overlap.order.use(self._parameters)
        open_deferred(self._parameters)
