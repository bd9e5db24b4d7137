"""Where a framework keeps one tensor's gradient: what a syncer may ask of it.

A frontend implements `GradientSlot` for every tensor, and `FactorSlot` for those whose layers can hand over factors.
Everything else about synchronisation is in this package.

All methods are called in the training thread, where the framework records nothing for differentiation, unless it is
said otherwise.  `Memory` is the framework's flat host memory (for torch a tensor, pinned if the slot is on a device),
`Tensor` its own kind of tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from undertow.engine.core.rounds import Array

Memory = TypeVar("Memory")
Tensor = TypeVar("Tensor")
Value = TypeVar("Value")

# Tells whether a copy from a device has ended.
IsReady = Callable[[], bool]


class InPlace(NamedTuple):
    """A gradient's own memory, from which it can be sent."""

    array: Array
    can_receive: bool  # nothing else uses this memory: the result may come there


class GradientSlot(Protocol[Memory]):
    """The gradient of one tensor, in its framework."""

    @property
    def name(self) -> str: ...

    @property
    def has_gradient(self) -> bool: ...

    def check(self) -> None:
        """Raise `ConfigError` if the gradient has another shape or type than all ranks have agreed on."""

    def expose(self, hint: Any) -> InPlace | None:
        """Return the gradient's own memory if it can be sent from there.

        `hint` is what the frontend passed to `GradientTable.send`.
        """

    def allocate(self, elements: int) -> Memory:
        """Return flat host memory for this many elements of the type that travels."""

    def segment(self, memory: Memory, start: int, elements: int) -> Memory:
        """Return the part of allocated memory that holds this gradient, for `copy_out` and `copy_in`."""

    def as_array(self, memory: Memory) -> Array:
        """Return allocated memory as a flat array."""

    def copy_out(self, segment: Memory) -> IsReady | None:
        """Copy the gradient, or zeros, to the host; None if the copy has ended."""

    def copy_in(self, segment: Memory) -> None:
        """Make the result in host memory the gradient."""


class Field(NamedTuple):
    """The form of one factor: elements per row, and their type where it is not that of the payload's values."""

    width: int
    dtype: np.dtype[Any] | None = None


class WorkerFactors(NamedTuple, Generic[Value]):
    """A gradient as far as one worker knows it.  All factors have equally many rows.

    The rows belong to those of a layer's input, or to the rows of an embedding that were touched.  `whole` is what
    came another way than through the layer: a weight that is used twice, a gradient that was there before the pass.
    """

    factors: tuple[Value, ...] = ()
    whole: Value | None = None
    is_present: bool = True


NO_FACTORS: WorkerFactors[Any] = WorkerFactors(is_present=False)


class Payload(NamedTuple):
    """The bytes of one worker's factors, and the number that says how to read them: see `payload`."""

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
        """Let the layer hand over factors from the next forward pass on."""

    def detach(self) -> None:
        """Let the layer make gradients from the next forward pass on."""

    def take_factors(self) -> WorkerFactors[Tensor]:
        """Return all that this worker knows of the gradient now, and forget it."""

    def pack(self, factors: WorkerFactors[Tensor]) -> Payload:
        """Return a copy as bytes: the layer may write to its tensors while they travel."""

    def split_rows(self, factors: WorkerFactors[Tensor], rows: range) -> WorkerFactors[Tensor]:
        """Return what makes these rows of the gradient, but for the first factor, which all rows need."""

    def combine(self, workers: Sequence[WorkerFactors[Array]]) -> Tensor | None:
        """Return the mean gradient of all workers, in rank order; None if none has one."""

    def multiply(
        self, first: Sequence[WorkerFactors[Array]], others: Sequence[WorkerFactors[Array]], rows: range
    ) -> Array:
        """Return these rows of the mean gradient, flat, from the first factors and those of the rows.

        Called in a thread beside engine and training.
        """

    def sample(self, gradient: Tensor) -> bytes:
        """Return a few elements that differ if the product was made in another way."""

    def replace(self, gradient: Tensor) -> None:
        """Make this the gradient."""

    def allocate(self, elements: int) -> Memory: ...

    def as_array(self, memory: Memory) -> Array: ...

    def replace_from(self, memory: Memory) -> None:
        """Make allocated memory, which holds all rows, the gradient."""
