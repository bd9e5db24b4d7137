"""Interface between the bench and the systems that it compares.

A system is written once and runs in two places.  The bench asks it, without torch, whether
it can run and which variables its workers need; each worker then lets it join the others
and wrap the model.  A package of its own offers one under the entry point group
`undertow.systems`: the name of the system, and an object like this.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def find_missing(package: str) -> str | None:
    """Return the obstacle that this package is not there; it is looked for, not imported."""
    return None if importlib.util.find_spec(package) else f"{package} is not installed"


class System:
    """System that trains as torch does, unless a subclass says otherwise."""

    name: str
    about: str  # one line for the list of systems
    warm_up_steps = 3  # after a change of the links, until a step is what it will be
    is_restless = False  # it keeps talking while it has nothing to do: its workers are stopped between their turns

    def find_obstacle(self) -> str | None:
        """Return why it cannot run here, in words; None if it can."""
        return find_missing("torch")

    def variables(self, *, scale: float, slowdown: float = 1.0) -> Mapping[str, str]:
        """Return environment variables for its workers, beside those that `undertow run` sets."""
        return {}

    def join(self) -> None:
        """Meet the other workers; called in a worker, as are the methods below."""

    def wrap(self, model: nn.Module, optimizer: Optimizer, *, scale: float) -> tuple[nn.Module, Optimizer]:
        """Return the model and the optimizer to train with."""
        return model, optimizer

    def flush(self) -> None:
        """Return when nothing is on its way any more.  Most systems have waited in backward or in step."""

    def bytes_sent(self) -> int | None:
        """Return what it has handed to the network by its own count; None if it does not count."""
        return None

    def leave(self) -> None:
        """Leave the other workers."""


class Local(System):
    """Workers that do not communicate."""

    name = "local"
    about = "no communication: what compute alone takes"

    def bytes_sent(self) -> int | None:
        return 0
