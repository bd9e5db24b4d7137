"""Process sets, under the name that Horovod has for all frameworks."""

from __future__ import annotations

from undertow.horovod.torch.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
