"""Notices a single-process script that trains without a torch optimizer: nothing would keep its workers together.

In: backward passes of a script that has neither made an optimizer nor joined the other workers.
Out: at the second one a warning, or `ConfigError` where the script's batches were to be split.
The first one is no sign: scripts run a model once, backward included, before they make its optimizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch.optim.optimizer import register_optimizer_step_pre_hook

from undertow.errors import ConfigError
from undertow.script.awareness import knows_of_ranks
from undertow.settings import Batch, Settings

LEGITIMATE_PASSES = 1  # before the first optimizer


class Unsynchronised:
    """Counts the backward passes before the first optimizer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._passes = 0

    def start_backward(self) -> str | None:
        """Returns what is to be said, once; raises `ConfigError` with `--batch split`."""
        self._passes += 1
        if self._settings.world_size == 1 or self._passes != LEGITIMATE_PASSES + 1:
            return None
        if self._settings.batch is Batch.SPLIT:
            raise ConfigError(f"--batch split is not possible: {self._describe()}. {_REMEDY}")
        return f"{self._describe()}. {_REMEDY} (--plain off silences this)"

    def _describe(self) -> str:
        return (
            f"{sys.argv[0]} trains without a torch.optim optimizer, so nothing is synchronised: each of "
            f"{self._settings.world_size} workers trains a full copy by itself and saves to the same paths"
        )


def watch_first_step(settings: Settings, say: Callable[[str], None]) -> None:
    """For a script that has imported undertow, and is left to join the others itself: say so if it trains without."""

    def check(*given: object) -> None:
        watching.remove()
        if not knows_of_ranks():
            say(
                f"{sys.argv[0]} imports undertow, but has not joined the other workers: each of {settings.world_size} "
                "trains a full copy by itself. Call undertow.init() and wrap the model (undertow.torch), or leave the "
                "import out to have it trained as a single-process script"
            )

    watching = register_optimizer_step_pre_hook(check)


_REMEDY = (
    "Use a torch.optim optimizer, or undertow.init() and undertow.torch.DistributedDataParallel, or one worker (-n 1)"
)
