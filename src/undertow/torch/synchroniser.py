"""What runs underneath one wrapped module: its tables, its passes, its group.

In: a wrapper.  Out: gradients, weights and buffers that are the same on all ranks.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from undertow.errors import ConfigError
from undertow.plan.plan import Plan
from undertow.plan.planner import AUTO, choose_policy
from undertow.plan.scheme import Scheme
from undertow.plan.slicing import Slice
from undertow.torch.broadcast import Broadcast, find_own
from undertow.torch.claims import SHOWN, Claim, claim, exempt
from undertow.torch.functional import find_stand_ins, is_stand_in, keeps_gradient
from undertow.torch.gradients import Gradients
from undertow.torch.groups import group_for
from undertow.torch.hooks import never_compiled
from undertow.torch.inputs import digest_inputs
from undertow.torch.naming import name_some
from undertow.torch.noting import note_layers
from undertow.torch.passes import Passes
from undertow.torch.planning import Planning, is_small
from undertow.torch.profiling import Profiling
from undertow.torch.reduced import find_process_group
from undertow.torch.turns import share_device

log = logging.getLogger("undertow")


class Wrapper(Protocol):
    """What stands for the module: `DistributedDataParallel` around it, or whoever adopted it."""

    module: torch.nn.Module
    process_group: Any
    plan: Any
    parameters_to_ignore: set[str]
    forward_sync_buffers: bool

    @property
    def is_joining(self) -> bool: ...

    def end_of_backward(self, absent: bool) -> None: ...


class Synchroniser:
    """Registers the module's tensors with all ranks; raises `MismatchError` if they differ."""

    def __init__(self, wrapper: Wrapper) -> None:
        _check_parameters(wrapper.module)
        self.group = group_for(wrapper.process_group)
        self._process_group = find_process_group(wrapper.process_group, self.group)
        self.taking = share_device(self.group, wrapper.module)
        owner = _Owner(wrapper)
        self.passes = Passes(
            owner.end_of_backward,
            wait_free=self.group.wait_free,
            is_joining=owner.is_joining,
            claim=self._claim(wrapper),
        )
        if self.taking is not None:
            self.passes.share(self.taking.turn)
        self._module = wrapper.module
        note_layers(wrapper.module)
        self._ignored = wrapper.parameters_to_ignore
        self._label = type(wrapper.module).__name__
        self._gradients: list[Gradients] = []
        self._owners = _find_owners(wrapper.module, self._ignored)
        self._frozen = self._parameters()
        self.planning = self._make_planning(choose_policy(wrapper.plan, self.group.plan))
        if self.planning is not None:
            self.passes.plan_with(self.planning)
        self._states: dict[bool, Broadcast] = {}  # without and with the buffers
        self._buffers: Broadcast | None = None
        self._own_buffers: Sequence[tuple[str, torch.Tensor]] = self._named_buffers()
        self._has_warned = False  # of gradients that stay with the tensors of a functional call
        self._adopt([(name, parameter) for name, parameter in self._frozen if parameter.requires_grad])
        # Now, when all ranks are here: in a join one of them may never come to a forward.
        if wrapper.forward_sync_buffers:
            self._buffers = self._make_broadcast("buffers", self._own_buffers)

    def _claim(self, wrapper: Wrapper) -> Claim | None:
        if self.group.size > 1:
            return claim(wrapper.module, wrapper.parameters_to_ignore)
        exempt(wrapper.module)
        return None

    def _make_planning(self, policy: str | Plan) -> Planning | Profiling | None:
        """Who decides how gradients travel, if there is anything to decide."""
        if self.group.profile:
            return Profiling(self._module, Path(self.group.profile))
        size_bytes = sum(parameter.numel() * parameter.element_size() for _, parameter in self._frozen)
        if policy == AUTO and is_small(size_bytes, self.group.sizes):
            policy = Scheme.DENSE.value
        if self.group.size == 1:
            return None
        clock = time.perf_counter if self.taking is None else self.taking.turn.read_clock
        return Planning(self.group, self._module, policy, self._process_group, clock)

    def see_inputs(self, *inputs: Any) -> None:
        """Of a forward pass: all ranks should be given different ones."""
        if isinstance(self.planning, Planning) and self.planning.wants_inputs:
            self.planning.see_inputs(digest_inputs(*inputs, waits=self.planning.is_young))

    def adopt_unfrozen(self) -> None:
        """Parameters that require a gradient take part from now on; frozen ones cost nothing."""
        ready = [(name, parameter) for name, parameter in self._frozen if parameter.requires_grad]
        if ready:
            self._adopt(ready)

    def _adopt(self, ready: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        if isinstance(self.planning, Planning):
            self.planning.check_devices(dict(ready))
        self._frozen = [(name, parameter) for name, parameter in self._frozen if not parameter.requires_grad]
        # Gradients come in about the reverse order of the forward pass.
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
        """An error if a parameter is not the one that was wrapped: its gradients would go nowhere.

        Tensors that take a parameter's place for one call (`torch.func.functional_call`) are let in.
        """
        replaced = {}
        for owned, leaf, name, parameter, dtype in self._owners:
            if owned.get(leaf) is not parameter:
                replaced[name] = owned.get(leaf)
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
        own = {id(parameter) for _, _, _, parameter, _ in self._owners}
        kept = [name for name, found in replaced.items() if found is not None and keeps_gradient(found, own)]
        if kept and not self._has_warned and self.group.rank == 0 < self.group.size - 1:
            self._has_warned = True
            log.warning(
                "this forward computes with other tensors in place of %s (functional_call), and their gradients do not "
                "reach the model's parameters: each worker keeps its own. Average them before all workers train with "
                "them, or pass tensors that are computed from the parameters without detach()",
                name_some(kept, SHOWN),
            )

    def copy_state(self, *, source: int = 0, with_buffers: bool) -> None:
        """Give everyone the source rank's parameters, and its buffers."""
        named: list[tuple[str, torch.Tensor]] = [*self._parameters(), *(self._named_buffers() if with_buffers else [])]
        if with_buffers not in self._states:
            self._states[with_buffers] = self._make_broadcast("parameters and buffers", named)
        self._states[with_buffers].run(named, source=source)

    def copy_buffers(self, *, from_lowest: bool) -> None:
        """Give everyone rank 0's buffers; of those that still train, the lowest one's."""
        self._own_buffers = find_own(self._named_buffers(), self._own_buffers)
        if self._buffers is None:
            self._buffers = self._make_broadcast("buffers", self._own_buffers)
        self._buffers.run(self._own_buffers, source=None if from_lowest else 0)

    @property
    def follows_buffers(self) -> bool:
        """Whether buffers have been the same on all ranks so far."""
        return self._buffers is not None

    def _make_broadcast(self, what: str, named: Sequence[tuple[str, torch.Tensor]]) -> Broadcast:
        return Broadcast(self.group, f"the {what} of {self._label}", named)

    def slices(self) -> list[Sequence[Slice]]:
        """All slices that go through one round per step where ranks may run out of input, by table."""
        tables = [gradients.table for gradients in self._gradients]
        return [table.first.slices for table in (*tables, *([self._buffers.table] if self._buffers else []))]

    def _parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in self._module.named_parameters() if name not in self._ignored]

    def _named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        # Looked up every time: a module may assign its buffers anew.
        return [(name, buffer) for name, buffer in self._module.named_buffers() if name not in self._ignored]


def _check_parameters(module: torch.nn.Module) -> None:
    """An error if other tensors are in the place of parameters now: it is the parameters that ranks share."""
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, torch.nn.Parameter):
            raise ConfigError(
                f"the first call of this copy of a wrapped model is a functional_call, with another tensor in place of "
                f"{name!r}. Call the copy itself first, or wrap a copy of the .module"
            )


def _find_owners(
    module: torch.nn.Module, ignored: Container[str]
) -> list[tuple[dict[str, torch.nn.Parameter | None], str, str, torch.nn.Parameter, torch.dtype]]:
    """Where each parameter is looked up, to see quickly whether it is still there."""
    owners = []
    for name, parameter in module.named_parameters():
        path, _, leaf = name.rpartition(".")
        if name not in ignored:
            owners.append((module.get_submodule(path)._parameters, leaf, name, parameter, parameter.dtype))
    return owners


def _find_sparse(module: torch.nn.Module) -> set[torch.Tensor]:
    """Parameters whose gradients are sparse on every rank, also where a rank produced none."""
    lookups = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {owner.weight for owner in module.modules() if isinstance(owner, lookups) and owner.sparse}


class _Owner:
    """The wrapper, as long as it is there: hooks that outlive it must not hold it."""

    def __init__(self, wrapper: Wrapper) -> None:
        self._wrapper = weakref.ref(wrapper)

    def is_joining(self) -> bool:
        wrapper = self._wrapper()
        return wrapper is not None and wrapper.is_joining

    def end_of_backward(self, absent: bool) -> None:
        wrapper = self._wrapper()
        if wrapper is not None:
            wrapper.end_of_backward(absent)
