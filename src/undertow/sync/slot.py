"""The interface between syncers and a framework: access to one tensor's gradient.

A frontend implements `GradientSlot` for every tensor, and `FactorSlot` for those whose layers can hand over factors.
Everything else about synchronisation is in this package.

Unless stated otherwise, methods are called in the training thread with the framework's autograd disabled.  `Memory` is
the framework's flat host memory (for torch a tensor, pinned if the slot is on a device), `Tensor` its tensor type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from undertow.engine.core.rounds import Array

Memory = TypeVar("Memory")
Tensor = TypeVar("Tensor")
Value = TypeVar("Value")

# Returns whether a copy from a device is complete.
IsReady = Callable[[], bool]


class InPlace(NamedTuple):
    """A gradient's own memory, from which it can be sent."""

    array: Array
    can_receive: bool  # nothing else uses this memory, so the result may be received there


class GradientSlot(Protocol[Memory]):
    """The gradient of one tensor, as its framework holds it."""

    @property
    def name(self) -> str: ...

    @property
    def has_gradient(self) -> bool: ...

    def check(self) -> None:
        """Raise `ConfigError` if the gradient's shape or type is not the one that all ranks agreed on."""

    def expose(self, hint: Any) -> InPlace | None:
        """Return the gradient's own memory if it can be sent from there.

        `hint` is what the frontend passed to `GradientTable.send`.
        """

    def allocate(self, elements: int) -> Memory:
        """Return flat host memory for this many elements of the type that is sent."""

    def segment(self, memory: Memory, start: int, elements: int) -> Memory:
        """Return the part of allocated memory that holds this gradient, for `copy_out` and `copy_in`."""

    def as_array(self, memory: Memory) -> Array:
        """Return allocated memory as a flat array."""

    def copy_out(self, segment: Memory) -> IsReady | None:
        """Copy the gradient, or zeros, to the host; return None if the copy is already complete."""

    def copy_in(self, segment: Memory) -> None:
        """Set the gradient to the result in host memory."""


class Field(NamedTuple):
    """The format of one factor: elements per row, and their type if it is not that of the payload's values."""

    width: int
    dtype: np.dtype[Any] | None = None


class WorkerFactors(NamedTuple, Generic[Value]):
    """One worker's share of a gradient.  All factors have the same number of rows.

    A row belongs to one row of the layer's input, or to one touched row of an embedding.  `whole` is the part of the
    gradient that did not come through the layer: a second use of the weight, or a gradient from before the pass.
    """

    factors: tuple[Value, ...] = ()
    whole: Value | None = None
    is_present: bool = True


NO_FACTORS: WorkerFactors[Any] = WorkerFactors(is_present=False)


class Payload(NamedTuple):
    """The bytes of one worker's factors, and the descriptor of their format: see `payload`."""

    array: Array | None
    descriptor: int
    is_ready: IsReady | None = None


class FactorSlot(Protocol[Memory, Tensor]):
    """The gradient of one weight whose layer can hand over factors instead."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def fields(self) -> Sequence[Field]: ...

    def attach(self) -> None:
        """Make the layer hand over factors, beginning with the next forward pass."""

    def detach(self) -> None:
        """Make the layer compute gradients, beginning with the next forward pass."""

    def take_factors(self) -> WorkerFactors[Tensor]:
        """Remove and return this worker's share of the gradient."""

    def pack(self, factors: WorkerFactors[Tensor]) -> Payload:
        """Return a copy as bytes: the layer may overwrite its tensors while they are sent."""

    def split_rows(self, factors: WorkerFactors[Tensor], rows: range) -> WorkerFactors[Tensor]:
        """Return the factors of these rows of the gradient, without the first factor, which all rows share."""

    def combine(self, workers: Sequence[WorkerFactors[Array]]) -> Tensor | None:
        """Return the mean gradient of all workers, given in rank order; None if no worker has a gradient."""

    def multiply(
        self, first: Sequence[WorkerFactors[Array]], others: Sequence[WorkerFactors[Array]], rows: range
    ) -> Array:
        """Return these rows of the mean gradient, flat, from the first factors and the factors of the rows.

        Called in the helper thread, neither in the engine thread nor in the training thread.
        """

    def sample(self, gradient: Tensor) -> bytes:
        """Return a few elements, which differ between ranks that computed the product differently."""

    def replace(self, gradient: Tensor) -> None:
        """Set the gradient."""

    def allocate(self, elements: int) -> Memory: ...

    def as_array(self, memory: Memory) -> Array: ...

    def replace_from(self, memory: Memory) -> None:
        """Set the gradient to allocated memory that holds all rows."""
