"""Finds out whether gradients are averaged by means other than undertow's wrapper.

In: a parameter or an optimizer, and an earlier count of collectives.  Out: whether something else certainly, or
possibly, averages its gradients.

Certainly: torch's own DistributedDataParallel holds the parameter, or the optimizer is Horovod's.  Possibly: the script
has called collectives (of torch.distributed, of Horovod's interface, or of the key-value store), or has loaded a
library whose calls cannot be counted.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch.optim import Optimizer

from undertow.runtime.process import count_own_calls

_own = 0  # number of torch.distributed collectives that undertow itself has called


def note_own_collective() -> None:
    """Note that undertow itself calls a collective of torch.distributed, so that it does not count."""
    global _own
    _own += 1


def count_collectives() -> int | None:
    """Return the number of collectives that the script has called; None if unknown."""
    if not (dist.is_available() and dist.is_initialized()):
        return count_own_calls()
    try:
        return count_own_calls() + sum(map(_count, dist.distributed_c10d._world.pg_map)) - _own
    except (RuntimeError, AttributeError):
        return None  # a backend that does not number them


def _count(group: Any) -> int:
    return int(group._get_sequence_number_for_group())


def may_average(before: int | None) -> bool:
    """Return whether gradients may be averaged by other means; `before` is an earlier count of collectives."""
    now = count_collectives()
    return now is None or now != before or _has_uncounted_library()


def _has_uncounted_library() -> bool:
    horovod = sys.modules.get("horovod")
    return "mpi4py" in sys.modules or (horovod is not None and not horovod.__name__.startswith("undertow."))


def steps_with_averages(optimizer: Optimizer) -> bool:
    """Return whether this is a DistributedOptimizer, Horovod's or undertow's, which averages its gradients."""
    return hasattr(optimizer, "skip_synchronize")


def find_averaged() -> set[int]:
    """Return the ids of all parameters of modules that torch's own class wraps.  Slow: inspects every object."""
    wrappers = [thing for thing in gc.get_objects() if issubclass(type(thing), TorchDistributedDataParallel)]
    return {id(parameter) for one in wrappers if not _is_ours(type(one)) for parameter in one.parameters()}


def _is_ours(kind: type[torch.nn.Module]) -> bool:
    return any(one.__module__.startswith("undertow.") for one in kind.__mro__)
