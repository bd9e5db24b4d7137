"""The seam between the bench and the systems that it compares.

A system is written once and runs in two places.  The bench asks it, without torch, whether
it can run and which variables its workers need; each worker then lets it join the others
and wrap the model.  A package of its own offers one under the entry point group
`undertow.systems`: the name of the system, and an object like this.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def find_missing(package: str) -> str | None:
    """The obstacle that this package is not there; looked for, not imported."""
    return None if importlib.util.find_spec(package) else f"{package} is not installed"


class System(Protocol):
    name: str
    about: str  # one line for the list of systems
    warm_up_steps: int  # so many steps after a change of the links it is what it is
    is_restless: bool  # it keeps talking while it has nothing to do: its workers are stopped between their turns

    def find_obstacle(self) -> str | None:
        """Why it cannot run here, in words; None if it can."""

    def variables(self, *, scale: float, slowdown: float = 1.0) -> Mapping[str, str]:
        """Environment variables for its workers, beside those that `undertow run` sets."""
        return {}

    def join(self) -> None:
        """In a worker: meet the other workers."""

    def wrap(self, model: nn.Module, optimizer: Optimizer, *, scale: float) -> tuple[nn.Module, Optimizer]:
        """In a worker: the model and the optimizer to train with."""

    def flush(self) -> None:
        """In a worker: return when nothing is on its way any more."""

    def bytes_sent(self) -> int | None:
        """In a worker: what it has handed to the network by its own count; None if it does not count."""

    def leave(self) -> None:
        """In a worker: the end."""
