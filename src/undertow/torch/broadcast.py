"""One rank's tensors for everybody: the first weights, and buffers before each forward.

In: tensors, any type and layout.  Out: the same tensors with the source rank's bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from undertow.core.dtypes import DType
from undertow.core.flow import Contribution
from undertow.core.rounds import Array, Op
from undertow.plan.slicing import Slice
from undertow.runtime.group import Group
from undertow.runtime.waiting import Ticket
from undertow.torch.table import Table
from undertow.torch.tensors import as_array, byte_spec

# The forward pass waits for it: before any gradient.
URGENT = -1


class Broadcast:
    """Tensors that are copied from one rank to all, as often as wanted."""

    def __init__(self, group: Group, label: str, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._group = group
        self._label = label
        self._running = Ticket(0)
        self._register(named)

    def _register(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.table = Table(self._group, self._label, [byte_spec(name, tensor) for name, tensor in named], Op.COPY)
        self._forms = _forms(named)

    def run(self, named: Sequence[tuple[str, torch.Tensor]], *, source: int | None = 0) -> None:
        """Copy the source rank's values into everyone's tensors.

        With `source=None` every rank offers its own, and the lowest rank that takes part wins.
        The source itself does not wait until the others have them.
        """
        if torch._C._are_functorch_transforms_active():
            with temporarily_clear_interpreter_stack():  # what is made here is no part of the transform
                self._copy(named, source)
        else:
            self._copy(named, source)

    @torch.no_grad()
    def _copy(self, named: Sequence[tuple[str, torch.Tensor]], source: int | None) -> None:
        if _forms(named) != self._forms:  # a buffer was assigned anew in another shape, on all ranks alike
            self._register(named)
        tensors = [tensor for _, tensor in named]
        # The source may be here again before the others have taken its last values.
        self._group.waiters.wait_for(self._running, self._label)
        offers = source is None or source == self._group.rank
        takes = source != self._group.rank
        hosts = [_host_copy(tensor) for tensor in tensors]
        arrays = [as_array(host, DType.BYTES) for host in hosts]
        memories = [gather_parts(item, arrays) for item in self.table.first.slices]
        self._running = Ticket(len(memories))
        self._group.contribute(
            [
                Contribution(
                    item.spec.key,
                    memory if offers else None,
                    memory if takes else None,
                    int(offers),
                    self._running.answer,
                    URGENT,
                )
                for item, memory in zip(self.table.first.slices, memories, strict=True)
            ]
        )
        if not takes:
            return
        self._group.waiters.wait_for(self._running, self._label)
        for item, memory in zip(self.table.first.slices, memories, strict=True):
            scatter_parts(item, memory, arrays)
        for tensor, host in zip(tensors, hosts, strict=True):
            _overwrite(tensor, host)


def find_own(
    found: Sequence[tuple[str, torch.Tensor]], known: Sequence[tuple[str, torch.Tensor]]
) -> Sequence[tuple[str, torch.Tensor]]:
    """The tensors of a module: those that are known, where a transform of `torch.func` has others instead."""
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return known if any(is_wrapped(tensor) for _, tensor in found) else found


def _forms(named: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in named]


def _overwrite(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """A buffer without autograd's notice, as torch has it: batch norm's statistics may be saved in the graph of a
    forward whose backward comes after the next forward."""
    (tensor if isinstance(tensor, torch.nn.Parameter) else tensor.data).copy_(host)


def _host_copy(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def gather_parts(item: Slice, arrays: Sequence[Array]) -> Array:
    """The slice's bytes: a view where it is a piece of one tensor, a copy where it is fused."""
    pieces = [arrays[part.tensor][part.offset : part.offset + part.elements] for part in item.parts]
    return np.concatenate(pieces) if item.is_fused else pieces[0]


def scatter_parts(item: Slice, memory: Array, arrays: Sequence[Array]) -> None:
    if item.is_fused:
        for part in item.parts:
            arrays[part.tensor][part.offset : part.offset + part.elements] = memory[part.at : part.at + part.elements]
