"""Synchronisation of one wrapped module: owns its tables, its passes and its planning.

In: a wrapper.  Out: gradients, weights and buffers that are the same on all ranks.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from undertow.engine.core.slicing import Slice
from undertow.errors import ConfigError
from undertow.plain_text import name_some
from undertow.plan.plan import Plan
from undertow.plan.planner import AUTO, choose_policy
from undertow.plan.scheme import Scheme
from undertow.settings import Priority
from undertow.sync.planning import is_small
from undertow.torch.claims import step_check
from undertow.torch.claims.claims import Claim, exempt
from undertow.torch.ddp.turns import share_device
from undertow.torch.gates.overlap import Overlap
from undertow.torch.gradient.allreduce import find_process_group
from undertow.torch.gradient.gradients import Gradients
from undertow.torch.modules.hooks import never_compiled
from undertow.torch.passes.functional_calls import find_stand_ins, is_stand_in, keeps_gradient
from undertow.torch.passes.pass_events import record_layers
from undertow.torch.passes.passes import Passes
from undertow.torch.planning.inputs import digest_inputs
from undertow.torch.planning.planning import TorchPlanning
from undertow.torch.planning.probe import Profiling
from undertow.torch.ranks.process_groups import group_for
from undertow.torch.slots.broadcast import Broadcast, find_own

log = logging.getLogger("undertow")


class Wrapper(Protocol):
    """Wrapper around the module: `DistributedDataParallel`, or `AdoptedModel` in a single-process script."""

    module: torch.nn.Module
    process_group: Any
    plan: Any
    parameters_to_ignore: set[str]
    forward_sync_buffers: bool

    @property
    def is_joining(self) -> bool: ...

    def end_of_backward(self, absent: bool) -> None: ...


class Synchroniser:
    """The tables, passes and planning of one wrapped module.

    The constructor registers the module's tensors with all ranks; raises `MismatchError` if they differ.
    """

    def __init__(self, wrapper: Wrapper) -> None:
        self._ignored = wrapper.parameters_to_ignore
        self._wrapped = _find_wrapped(wrapper.module, self._ignored)
        self.group = group_for(wrapper.process_group)
        self._process_group = find_process_group(wrapper.process_group, self.group)
        self.turn_hooks = share_device(self.group, wrapper.module)
        claim = self._claim(wrapper)
        self._module = wrapper.module
        record_layers(wrapper.module)
        self._label = type(wrapper.module).__name__
        self._gradients: list[Gradients] = []
        self._frozen = self._parameters()
        self.planning = self._make_planning(choose_policy(wrapper.plan, self.group.shape.plan))
        owner = _Owner(wrapper)
        self.passes = Passes(
            owner.end_of_backward,
            wait_free=self.group.shape.wait_free,
            is_joining=owner.is_joining,
            claim=claim,
            planning=self.planning,
            turn=None if self.turn_hooks is None else self.turn_hooks.turn,
        )
        self._states: dict[bool, Broadcast] = {}  # by whether they include the buffers
        self.buffers: Broadcast | None = None  # made when buffers are first synchronised
        self._own_buffers: Sequence[tuple[str, torch.Tensor]] = self._named_buffers()
        self._has_warned = False  # about gradients that stay with the tensors of a functional_call
        self._adopt()
        # Now, while all ranks take part: in a join, one of them may never run a forward.
        if wrapper.forward_sync_buffers:
            self.buffers = self._make_broadcast("buffers", self._own_buffers)

    def _claim(self, wrapper: Wrapper) -> Claim | None:
        if self.group.size > 1:
            return step_check.claim(wrapper.module, wrapper.parameters_to_ignore)
        exempt(wrapper.module)
        return None

    def _make_planning(self, policy: str | Plan) -> TorchPlanning | Profiling | None:
        """Return what chooses the schemes, or only profiles; None if there is nothing to choose."""
        if self.group.shape.profile:
            return Profiling(self._module, Path(self.group.shape.profile))
        size_bytes = sum(parameter.numel() * parameter.element_size() for _, parameter in self._frozen)
        if policy == AUTO and is_small(size_bytes, self.group.shape.sizes):
            policy = Scheme.DENSE.value
        if self.group.size == 1:
            return None
        clock = time.perf_counter if self.turn_hooks is None else self.turn_hooks.turn.read_clock
        return TorchPlanning(self.group, self._module, policy, self._process_group, clock)

    def note_inputs(self, *inputs: Any) -> None:
        """Pass a digest of a forward's inputs, which should differ between ranks, to the planning."""
        if isinstance(self.planning, TorchPlanning) and self.planning.wants_inputs:
            self.planning.note_inputs(digest_inputs(*inputs, waits=self.planning.is_early))

    def overlap(self) -> Overlap | None:
        """Let forward passes overlap with gradients in flight; return None if there is only one worker."""
        if self.group.size == 1:
            return None
        overlap = Overlap(self._module, prioritises=self.group.shape.priority is not Priority.OFF)
        self.passes.overlap_with(overlap)
        return overlap

    def adopt_unfrozen(self) -> None:
        """Synchronise parameters that have been unfrozen; frozen ones cost nothing."""
        if any(parameter.requires_grad for _, parameter in self._frozen):
            self._adopt()

    def _adopt(self) -> None:
        ready = [(name, parameter) for name, parameter in self._frozen if parameter.requires_grad]
        if isinstance(self.planning, TorchPlanning):
            self.planning.check_devices(dict(ready))
        self._frozen = [(name, parameter) for name, parameter in self._frozen if not parameter.requires_grad]
        # Backward computes gradients in roughly the reverse order of the forward pass.
        gradients = Gradients(
            self.group,
            f"the parameters of {self._label}",
            ready[::-1],
            sparse=_find_sparse(self._module),
            process_group=self._process_group,
        )
        self._gradients.append(gradients)
        self.passes.watch(gradients)

    def check_unchanged(self) -> None:
        """Raise `ConfigError` if a wrapped parameter was replaced: its gradients would not be averaged.

        Tensors that replace a parameter for one call (`torch.func.functional_call`) are accepted.
        """
        replaced = {}
        for name, holder, leaf, parameter, dtype in self._wrapped:
            if holder.get(leaf) is not parameter:
                replaced[name] = holder.get(leaf)
            elif parameter.dtype is not dtype:
                raise ConfigError(
                    f"parameter {name!r} was {dtype} when the module was wrapped and is {parameter.dtype} now. "
                    "Change the module first, then wrap it"
                )
        if replaced:
            self._check_replaced(replaced)

    @never_compiled
    def _check_replaced(self, replaced: Mapping[str, torch.Tensor | None]) -> None:
        stand_ins = find_stand_ins()
        for name, found in replaced.items():
            if not is_stand_in(found, stand_ins):
                raise ConfigError(
                    f"parameter {name!r} was replaced after the module was wrapped (by load_state_dict(assign=True), "
                    "pruning or a parametrization?). Change the module first, then wrap it"
                )
        own = {id(wrapped.parameter) for wrapped in self._wrapped}
        kept = [name for name, found in replaced.items() if found is not None and keeps_gradient(found, own)]
        if kept and not self._has_warned and self.group.rank == 0 < self.group.size - 1:
            self._has_warned = True
            log.warning(
                "this forward computes with other tensors in place of %s (functional_call), and their gradients do not "
                "reach the model's parameters: each worker keeps its own. Average them before all workers train with "
                "them, or pass tensors that are computed from the parameters without detach()",
                name_some(kept, step_check.SHOWN),
            )

    def copy_state(self, *, source: int = 0, with_buffers: bool) -> None:
        """Copy the source rank's parameters to all ranks, optionally with its buffers."""
        named: list[tuple[str, torch.Tensor]] = [*self._parameters(), *(self._named_buffers() if with_buffers else [])]
        if with_buffers not in self._states:
            self._states[with_buffers] = self._make_broadcast("parameters and buffers", named)
        self._states[with_buffers].run(named, source=source)

    def copy_buffers(self, *, from_lowest: bool) -> None:
        """Copy buffers to all ranks, from rank 0 or from the lowest rank that still has input."""
        self._own_buffers = find_own(self._named_buffers(), self._own_buffers)
        if self.buffers is None:
            self.buffers = self._make_broadcast("buffers", self._own_buffers)
        self.buffers.run(self._own_buffers, source=None if from_lowest else 0)

    def _make_broadcast(self, what: str, named: Sequence[tuple[str, torch.Tensor]]) -> Broadcast:
        return Broadcast(self.group, f"the {what} of {self._label}", named)

    def slices(self) -> list[Sequence[Slice]]:
        """Return the slices, by table, that take part in one round per step when ranks may run out of input."""
        tables = [gradients.table for gradients in self._gradients]
        return [table.first.slices for table in (*tables, *([self.buffers.table] if self.buffers else []))]

    def _parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in self._module.named_parameters() if name not in self._ignored]

    def _named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        # Looked up every time: a module may reassign its buffers.
        return [(name, buffer) for name, buffer in self._module.named_buffers() if name not in self._ignored]


class _Wrapped(NamedTuple):
    """A parameter as it was wrapped, and the dictionary that holds it, so that a replacement is detected quickly."""

    name: str
    holder: dict[str, torch.nn.Parameter | None]
    leaf: str  # its key in `holder`
    parameter: torch.nn.Parameter
    dtype: torch.dtype


def _find_wrapped(module: torch.nn.Module, ignored: Container[str]) -> list[_Wrapped]:
    """Return the module's parameters; raises `ConfigError` if other tensors replace any of them at the moment."""
    wrapped = []
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, torch.nn.Parameter):
            raise ConfigError(
                f"the first call of this copy of a wrapped model is a functional_call, with another tensor in place of "
                f"{name!r}. Call the copy itself first, or wrap a copy of the .module"
            )
        path, _, leaf = name.rpartition(".")
        if name not in ignored:
            wrapped.append(_Wrapped(name, module.get_submodule(path)._parameters, leaf, parameter, parameter.dtype))
    return wrapped


def _find_sparse(module: torch.nn.Module) -> set[torch.Tensor]:
    """Return the parameters whose gradients are sparse on every rank, even on a rank that produced none."""
    lookups = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {owner.weight for owner in module.modules() if isinstance(owner, lookups) and owner.sparse}


class _Owner:
    """A weak reference to the wrapper: hooks that outlive it must not hold it."""

    def __init__(self, wrapper: Wrapper) -> None:
        self._wrapper = weakref.ref(wrapper)

    def is_joining(self) -> bool:
        wrapper = self._wrapper()
        return wrapper is not None and wrapper.is_joining

    def end_of_backward(self, absent: bool) -> None:
        wrapper = self._wrapper()
        if wrapper is not None:
            wrapper.end_of_backward(absent)
