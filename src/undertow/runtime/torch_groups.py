"""Whether the script has a process group of torch's, and of how many processes; imports nothing to find out."""

from __future__ import annotations

import sys


def has_process_group() -> bool:
    """Whether `torch.distributed` is initialised."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


def has_group_of_one() -> bool:
    """Whether all of `torch.distributed` is this process."""
    return has_process_group() and sys.modules["torch.distributed"].get_world_size() == 1
