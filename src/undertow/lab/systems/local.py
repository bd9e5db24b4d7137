"""No system at all: every worker trains for itself.  What pure compute takes, with all hosts at work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from undertow.lab.systems.system import find_missing

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Local:
    name = "local"
    about = "no communication: what compute alone takes"
    warm_up_steps = 3
    is_restless = False

    def find_obstacle(self) -> str | None:
        return find_missing("torch")

    def variables(self, *, scale: float, slowdown: float = 1.0) -> Mapping[str, str]:
        return {}

    def join(self) -> None:
        pass

    def wrap(self, model: nn.Module, optimizer: Optimizer, *, scale: float) -> tuple[nn.Module, Optimizer]:
        return model, optimizer

    def flush(self) -> None:
        pass

    def bytes_sent(self) -> int | None:
        return 0

    def leave(self) -> None:
        pass
