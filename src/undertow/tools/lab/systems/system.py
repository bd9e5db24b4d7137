"""Interface between the bench and the systems that it compares.

The bench uses a system without torch, to find out whether it can run and which variables its
workers need.  Each worker then uses it to connect to the others and to wrap the model.
Another package provides a system as an entry point of the group `undertow.systems`: the
system's name, and a callable that returns an object with this interface.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def find_missing(package: str) -> str | None:
    """Return that a package is missing, in words; None if it is installed.  Does not import it."""
    return None if importlib.util.find_spec(package) else f"{package} is not installed"


class System:
    """System that trains like plain torch, unless a subclass overrides a method."""

    name: str
    about: str  # one line for the list of systems
    warm_up_steps = 3  # after a change of the links, until the step time has settled
    is_restless = False  # it communicates even when idle: its workers are stopped between their laps

    def find_obstacle(self) -> str | None:
        """Return why it cannot run here, in words; None if it can."""
        return find_missing("torch")

    def variables(self, *, scale: float, slowdown: float = 1.0) -> Mapping[str, str]:
        """Return environment variables for its workers, in addition to those that `undertow run` sets."""
        return {}

    def join(self) -> None:
        """Connect to the other workers.  Called in a worker, like the methods below."""

    def wrap(self, model: nn.Module, optimizer: Optimizer, *, scale: float) -> tuple[nn.Module, Optimizer]:
        """Return the model and the optimizer to train with."""
        return model, optimizer

    def flush(self) -> None:
        """Wait until no update is pending.  Most systems have already waited in backward or in step."""

    def bytes_sent(self) -> int | None:
        """Return the bytes that it has sent by its own count; None if it does not count."""
        return None

    def leave(self) -> None:
        """Disconnect from the other workers."""


class Local(System):
    """Workers that do not communicate."""

    name = "local"
    about = "no communication: what compute alone takes"

    def bytes_sent(self) -> int | None:
        return 0
