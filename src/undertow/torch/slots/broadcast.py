"""Broadcasts one rank's tensors to all ranks: the initial weights, and buffers before each forward.

In: tensors of any type and layout.  Out: the same tensors with the source rank's values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from undertow.engine.core.dtypes import DType
from undertow.engine.interface import Group
from undertow.sync.broadcast import ArrayBroadcast
from undertow.sync.table import Table
from undertow.torch.slots.tensors import as_array, byte_spec


class Broadcast:
    """A repeatable broadcast of tensors."""

    def __init__(self, group: Group, label: str, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._group = group
        self._label = label
        self._register(named)

    @property
    def table(self) -> Table:
        return self._arrays.table

    def _register(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._arrays = ArrayBroadcast(self._group, self._label, [byte_spec(name, tensor) for name, tensor in named])
        self._forms = _forms(named)

    def run(self, named: Sequence[tuple[str, torch.Tensor]], *, source: int | None = 0) -> None:
        """Copy the source rank's values into the tensors of all other ranks; see `ArrayBroadcast.run`."""
        if torch._C._are_functorch_transforms_active():
            with temporarily_clear_interpreter_stack():  # the copies are not part of the transform
                self._copy(named, source)
        else:
            self._copy(named, source)

    @torch.no_grad()
    def _copy(self, named: Sequence[tuple[str, torch.Tensor]], source: int | None) -> None:
        # The source may get here again before the others have received its last values.
        self._arrays.wait()
        if _forms(named) != self._forms:  # a buffer was reassigned with another shape, on all ranks alike
            self._register(named)
        hosts = [torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor) for _, tensor in named]
        if self._arrays.run([as_array(host, DType.BYTES) for host in hosts], source=source):
            for (_, tensor), host in zip(named, hosts, strict=True):
                # Buffers are overwritten without autograd's knowledge, as in torch: batch norm's statistics may be
                # saved in the graph of a forward whose backward runs after the next forward.
                (tensor if isinstance(tensor, torch.nn.Parameter) else tensor.data).copy_(host)


def find_own(
    found: Sequence[tuple[str, torch.Tensor]], known: Sequence[tuple[str, torch.Tensor]]
) -> Sequence[tuple[str, torch.Tensor]]:
    """Return the tensors found in a module, or the known ones if `torch.func` has replaced them."""
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return known if any(is_wrapped(tensor) for _, tensor in found) else found


def _forms(named: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in named]
