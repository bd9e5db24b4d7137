"""The slot of one torch parameter's gradient, for the syncers.

In: host memory with the mean.  Out: the parameter's `.grad`, in its own layout; and back.
"""

from __future__ import annotations

import torch

from undertow.engine.core.rounds import Array
from undertow.errors import ConfigError
from undertow.sync.slot import InPlace, IsReady
from undertow.torch.pending.memory_owners import is_received_alone
from undertow.torch.slots.device import Copier, host_memory
from undertow.torch.slots.tensors import DTYPES, as_array, as_complex, gradient_dtype, is_plain, real


class TorchSlot:
    """The gradient of one parameter; host memory is a tensor."""

    def __init__(
        self,
        name: str,
        parameter: torch.nn.Parameter,
        copier: Copier,
        *,
        is_sparse: bool,
        travels_as: torch.dtype | None = None,
    ) -> None:
        self.name = name
        self.parameter = parameter
        self.dtype = gradient_dtype(parameter)
        self.copier = copier
        self._travels_as = travels_as or self.dtype
        self._code = DTYPES[self._travels_as]
        self._is_sparse = is_sparse  # as its module says, because there may be no gradient to tell
        self._shape = parameter.shape
        self._host_shape = real(parameter.detach()).shape

    @property
    def has_gradient(self) -> bool:
        return self.parameter.grad is not None

    def check(self) -> None:
        gradient = self.parameter.grad
        if gradient is not None and (gradient.dtype is not self.dtype or gradient.shape != self._shape):
            raise ConfigError(
                f"the gradient of {self.name!r} is {list(gradient.shape)} {gradient.dtype}, but it was "
                f"{list(self._shape)} {self.dtype} when the module was wrapped. Change the module first, then wrap it"
            )

    def expose(self, hint: torch.Tensor | None) -> InPlace | None:
        """Return the gradient's own memory; the hint is the tensor that autograd has just accumulated, and still holds.

        Autograd passes gradients on as views where it can: gradients of earlier layers may still have to be computed
        from this memory, or sent from it.  Then nothing may be received there.
        """
        gradient = self.parameter.grad
        if gradient is None or self._travels_as is not self.dtype or not is_plain(gradient):
            return None
        can_receive = is_received_alone(gradient, hint)  # before the array becomes another owner of the memory
        return InPlace(as_array(real(gradient), self._code), can_receive)

    def allocate(self, elements: int) -> torch.Tensor:
        return host_memory(elements, self._travels_as.to_real(), self.parameter.device)

    def segment(self, memory: torch.Tensor, start: int, elements: int) -> torch.Tensor:
        return memory[start : start + elements].view(self._host_shape)

    def as_array(self, memory: torch.Tensor) -> Array:
        return as_array(memory, self._code)

    def copy_out(self, segment: torch.Tensor) -> IsReady | None:
        gradient = self.parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(self.parameter, dtype=self.dtype)
        dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
        return self.copier.out(real(dense), segment)

    def copy_in(self, segment: torch.Tensor) -> None:
        result = as_complex(segment) if self.dtype.is_complex else segment
        gradient = self.parameter.grad
        if gradient is None and not self._is_sparse:
            gradient = self.parameter.grad = torch.empty_like(self.parameter, dtype=self.dtype)
        if gradient is not None and gradient.layout is torch.strided:
            self.copier.back(result, gradient)
        else:
            # Leaves out rows that no worker touched, and touched rows whose mean is zero.
            dimensions = 1 if gradient is None else gradient.sparse_dim()
            self.replace(result.to_sparse(dimensions).to(self.parameter.device))

    def replace(self, result: torch.Tensor) -> None:
        """Set the gradient to this result, in its present memory if possible."""
        gradient = self.parameter.grad
        if gradient is not None and gradient.layout is result.layout:
            gradient.copy_(result)  # the user may refer to the object
        else:
            self.parameter.grad = result
