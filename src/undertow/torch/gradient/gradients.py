"""The gradients of torch parameters in a table, as used by autograd's hooks, gates and plans."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch

from undertow.engine.core.rounds import Op
from undertow.engine.interface import Group
from undertow.sync.gradient_table import GradientTable
from undertow.sync.syncers import Syncer
from undertow.torch.factors.collector import FactorCollector, Wanted
from undertow.torch.factors.factor_slot import TorchFactorSlot
from undertow.torch.factors.layers import Layer
from undertow.torch.gradient.allreduce import AllreduceBuckets, can_allreduce
from undertow.torch.pending.memory_owners import is_gradient_alone
from undertow.torch.pending.pending_tensors import can_wait
from undertow.torch.slots.device import copier_for
from undertow.torch.slots.slot import TorchSlot
from undertow.torch.slots.tensors import gradient_spec


class Gradients(GradientTable):
    """The gradients of some parameters, in the order in which they are expected.

    Use it only with gradient recording disabled, as in autograd's own hooks.
    """

    REMEDY = "Use torch.utils.checkpoint with use_reentrant=False"

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
        """`compress` returns the type in which a gradient is sent; None for its own type."""
        self.parameters = [parameter for _, parameter in named]
        self.names: dict[torch.Tensor, str] = {parameter: name for name, parameter in named}
        types = [compress(parameter) for parameter in self.parameters]
        specs = [gradient_spec(name, p, travels_as) for (name, p), travels_as in zip(named, types, strict=True)]
        copiers = {device: copier_for(device) for device in {parameter.device for parameter in self.parameters}}
        slots = [
            TorchSlot(name, p, copiers[p.device], is_sparse=p in sparse, travels_as=travels_as)
            for (name, p), travels_as in zip(named, types, strict=True)
        ]
        # Returns what the running backward wants from a layer that could hand over factors of a gradient.  The layer
        # keeps this function when the wrapper is deleted.
        self.wants: Callable[[int], Wanted] = lambda index: Wanted.GRADIENT
        self._torch_slots = slots
        self._process_group = process_group  # torch's process group of the same workers, if there is one
        self._factor_slots: dict[int, TorchFactorSlot] = {}
        self._buckets: AllreduceBuckets | None = None
        super().__init__(group, label, slots, specs, op=op)

    def adopt_layers(self, layers: Mapping[torch.Tensor, Layer]) -> None:
        """Let plans choose factors for the weights of these layers; `wants` must be set already."""
        for index, parameter in enumerate(self.parameters):
            if parameter in layers and index not in self._factor_slots:
                collector = FactorCollector(parameter, layers[parameter].form, functools.partial(self.wants, index))
                self._factor_slots[index] = TorchFactorSlot(self._torch_slots[index], layers[parameter], collector)

    def find_factor_slot(self, index: int) -> TorchFactorSlot | None:
        return self._factor_slots.get(index)

    def can_allreduce(self, index: int) -> bool:
        return self._process_group is not None and can_allreduce(self.parameters[index])

    def make_allreduce_syncers(self, members: Sequence[int]) -> Sequence[Syncer]:
        self._buckets = AllreduceBuckets(self._group, self._process_group, self._torch_slots, members)
        return self._buckets.syncers

    @property
    def allreduce_bytes_per_s(self) -> float | None:
        return None if self._buckets is None else self._buckets.bytes_per_s

    def accumulated(self, index: int, added: torch.Tensor | None) -> None:
        """Note that a pass that is not synchronised has added this to the gradient."""
        if index in self._factored:
            self._factor_slots[index].collector.accumulated(added)

    def is_held(self, index: int) -> bool:
        """Whether this gradient's memory can be reached, or its object read, without passing a gate.

        Valid only when backward has ended: until then autograd also refers to it.
        """
        gradient = self.parameters[index].grad
        if gradient is None:
            return False
        return not can_wait(gradient) or not is_gradient_alone(gradient, own=int(self._holds_memory_of(index)))
