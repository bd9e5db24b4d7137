"""`horovod.run`: calls a function on several workers of this host."""

from __future__ import annotations

from undertow.horovod.runner.function import run

__all__ = ["run"]
