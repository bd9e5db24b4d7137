"""Horovod's process sets, of which there is one here: all ranks."""

from __future__ import annotations

from typing import Any

from undertow.horovod.errors import NotThere
from undertow.horovod.torch import basics


class ProcessSet:
    """All ranks; any other set is refused when it is made."""

    process_set_id = 0

    def __init__(self, ranks: Any = None) -> None:
        if ranks is not None and list(ranks) != list(range(basics.size())):
            raise NotThere(
                "process sets other than that of all ranks are not there: leave process_set out, or use "
                "undertow.torch.DistributedDataParallel with a torch process group of these ranks"
            )

    @property
    def ranks(self) -> list[int]:
        return list(range(basics.size()))

    def size(self) -> int:
        return basics.size()

    def rank(self) -> int:
        return basics.rank()

    def included(self) -> bool:
        return True


global_process_set = ProcessSet()


def add_process_set(process_set: Any) -> ProcessSet:
    return ProcessSet(getattr(process_set, "ranks", process_set))


def remove_process_set(process_set: ProcessSet) -> bool:
    """The set of all ranks stays."""
    return False


def require_all(process_set: Any) -> None:
    """Refuse whatever is not the set of all ranks."""
    if not isinstance(process_set, ProcessSet):
        ProcessSet(getattr(process_set, "ranks", process_set))
