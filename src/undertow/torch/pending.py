"""The class of a gradient that is still on its way.

In: a gradient whose mean has not come, and the gate of its parameter.  Out: every read of the gradient's object, from
wherever it is held, opens the gate first.  The object keeps its identity; afterwards it is an ordinary tensor.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from undertow.torch.closed import GATE, Waiting, hide

if TYPE_CHECKING:
    from undertow.torch.gates import Gate


class Pending(Waiting, torch.Tensor):  # type: ignore[misc]
    """A gradient whose mean has not come."""

    __module__, __qualname__ = torch.Tensor.__module__, torch.Tensor.__qualname__


Pending.__name__ = torch.Tensor.__name__


def can_wait(gradient: torch.Tensor) -> bool:
    """Whether it is an ordinary tensor: a subclass may have its own ways to read it."""
    return type(gradient) is torch.Tensor and GATE not in vars(gradient)


def close_gradient_itself(gradient: torch.Tensor, gate: Gate) -> torch.Tensor | None:
    """Make every read of this gradient wait at the gate.  Returns what was hidden of it, if anything."""
    hidden = hide(gradient) if gradient.layout is torch.strided else None
    # Weakly: the parameter refers to its gradient in a way that the garbage collector does not see.
    vars(gradient)[GATE] = weakref.ref(gate)
    gradient.__class__ = Pending
    return hidden


def release(gradient: Any) -> None:
    """Make it an ordinary tensor again."""
    gradient.__class__ = torch.Tensor
    del vars(gradient)[GATE]
