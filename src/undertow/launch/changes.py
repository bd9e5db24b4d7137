"""What `undertow run` wants of its workers beside their place, told to them in their environment.

In: the options of the command line.  Out: the variables to set; without a wish the user's own stay.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from undertow.settings import Batch, Horovod, PlainScripts
from undertow.trace.window import parse_window


class Switch(enum.Enum):
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class Changes:
    """None and False are no wish."""

    batch: Batch | None = None
    overlap: bool = False
    seed_per_rank: bool = False
    plain: PlainScripts | None = None
    ddp: Switch | None = None
    horovod: Horovod | None = None
    trace: Path | None = None
    trace_steps: str | None = None

    def to_environment(self) -> dict[str, str]:
        if self.trace_steps is not None:
            parse_window(self.trace_steps)
        wishes = {
            "UNDERTOW_BATCH": self.batch and self.batch.value,
            "UNDERTOW_OVERLAP": self.overlap and "on",
            "UNDERTOW_SEED_PER_RANK": self.seed_per_rank and "on",
            "UNDERTOW_PLAIN": self.plain and self.plain.value,
            "UNDERTOW_DDP": self.ddp and self.ddp.value,
            "UNDERTOW_HOROVOD": self.horovod and self.horovod.value,
            "UNDERTOW_TRACE": self.trace and str(self.trace),
            "UNDERTOW_TRACE_STEPS": self.trace_steps,
        }
        return {variable: value for variable, value in wishes.items() if value}
