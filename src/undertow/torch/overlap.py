"""What lets the next forward pass start early: gates, the order of use, and who asks for both.

In: a module whose backward passes are synchronised.  Out: backward returns without waiting,
slices travel in the order in which the next forward pass needs them, and each module waits for
its own parameters only.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from undertow.torch.closed import find_gate, open_gates
from undertow.torch.gates import Gates
from undertow.torch.gradients import Gradients
from undertow.torch.hooks import ForwardHook, never_compiled
from undertow.torch.native import guard_native_functions
from undertow.torch.order import Order

# More than any module has parameters.
PLACES = 1 << 32
# The passes of all modules of this process.  What is left of one goes before all of the next: a rank that is ahead
# must not send its new gradients while its shard still owes the others an answer that they wait for.
_passes = itertools.count(1)


class Overlap:
    """Of one wrapped module."""

    def __init__(self, module: torch.nn.Module, *, prioritises: bool) -> None:
        guard_native_functions()
        self.gates = Gates()
        weakref.finalize(self, self.gates.retire).atexit = False
        self._prioritises = prioritises
        self._order = Order(module.parameters())
        self._pass = 0
        for owner, parameters in find_readers(module):
            # First of all: hooks of the user may read the parameters as well.
            owner.register_forward_pre_hook(_Use(self, parameters), prepend=True)

    def begin(self) -> None:
        """A backward pass begins."""
        # Parameters that the forward pass did not need may still wait for the last update.
        self.gates.flush()
        self.gates.forget_arrivals()
        self._order.end_pass()
        self._pass = next(_passes)

    def expect(self, gradients: Gradients) -> Callable[[Sequence[int]], None]:
        """These are about to be made: gives them their order, and returns whom to tell of their results."""
        if self._prioritises:
            gradients.priorities = [self._pass * PLACES + place for place in self._order.places(gradients.parameters)]
        return functools.partial(self.gates.arrived, gradients)

    def wait_for_exposed(self, gradients: Sequence[Gradients]) -> None:
        """The backward pass has ended.  Some of these may share memory, with each other or with others."""
        for one in gradients:
            self.gates.wait_for_exposed(one)

    def end(self, gradients: Sequence[Gradients]) -> None:
        """All gradients are on their way."""
        # What backward has computed again belongs to no forward pass.
        self._order.end_pass()
        for one in gradients:
            self.gates.close(one)

    def use(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """A forward pass is about to read these: wait for them, and for no others."""
        if torch.is_grad_enabled():
            self._order.use(parameters)
        for parameter in parameters:
            gate = find_gate(parameter)
            if gate is not None and gate.is_due:
                gate.open()


class _Use(ForwardHook):
    """In front of a module's forward."""

    def __init__(self, overlap: Overlap, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._overlap = weakref.ref(overlap)
        self._parameters = parameters

    @never_compiled
    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        overlap = self._overlap()
        if overlap is not None and module.training:
            overlap.use(self._parameters)
        else:
            # Evaluation has ways of its own through some modules, which a closed gate further in would bar.
            open_gates(list(module.parameters()))


def find_readers(module: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, list[torch.nn.Parameter]]]:
    """Modules with parameters in them, and what their forward itself reads in training.

    That is their own, or all where nobody can look inside.
    """
    seen: set[torch.nn.Module] = set()
    waiting = [module]
    while waiting:
        reader = waiting.pop()
        if reader in seen:
            continue
        seen.add(reader)
        is_closed = is_opaque(reader)
        if next(reader.parameters(), None) is not None:
            yield reader, list(reader.parameters(recurse=is_closed))
        if not is_closed:
            waiting.extend(reversed(list(reader.children())))


def is_opaque(module: torch.nn.Module) -> bool:
    """Compiled: inside no hook of ours should be called."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
