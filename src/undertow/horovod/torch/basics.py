"""Who takes part, and where: `init`, ranks and sizes, and honest answers about what is built in.

In: our own settings and group.  Out: the numbers under Horovod's names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from undertow.errors import ConfigError
from undertow.horovod import topology
from undertow.horovod.errors import NotThere, translated
from undertow.horovod.place import Place
from undertow.runtime import process
from undertow.runtime.group import Group

_at_shutdown: list[Callable[[], None]] = []


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the other workers; see `undertow.init`.  A second call changes nothing, unless it brings process sets.

    From then on HOROVOD_RANK and its like are set.
    """
    from undertow.horovod.torch.process_sets import register_static

    if comm is not None:
        raise NotThere("hvd.init() takes all ranks of the job: leave comm out, and use process_sets for some of them")
    with translated():
        process.give_way("hvd.init()")
        process.init()
    os.environ.update(_place().to_environment())
    register_static(process_sets)


def _place() -> Place:
    return Place(
        rank=rank(),
        size=size(),
        local_rank=local_rank(),
        local_size=local_size(),
        cross_rank=cross_rank(),
        cross_size=cross_size(),
    )


def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of every process set by its number, under Horovod's own name."""
    from undertow.horovod.torch.process_sets import get_process_set_ids_and_ranks

    return get_process_set_ids_and_ranks()


def shutdown() -> None:
    """Leave the job in order."""
    for forget in _at_shutdown:
        forget()
    process.shutdown()


def at_shutdown(forget: Callable[[], None]) -> None:
    """What belongs to the job that ends is forgotten with it."""
    _at_shutdown.append(forget)


def is_initialized() -> bool:
    """Whether `init` was called.  Workers that were joined for a single-process script do not count."""
    return process.is_joined_by_script()


def group() -> Group:
    """The workers of this job."""
    if not is_initialized():
        raise ConfigError("Horovod is not initialised: call hvd.init() first")
    return process.default_group()


def rank() -> int:
    """This worker's number, from 0 to `size() - 1`."""
    return group().rank


def size() -> int:
    """How many workers there are."""
    return group().size


def local_rank() -> int:
    """This worker's number on its own host: choose the device with it."""
    group()
    return process.settings().local_rank


def local_size() -> int:
    """How many workers run on this host."""
    group()
    return process.settings().local_world_size


def cross_rank() -> int:
    """The number of this worker's host."""
    return topology.cross_rank(group().hosts, rank())


def cross_size() -> int:
    """How many hosts there are."""
    return topology.cross_size(group().hosts)


def is_homogeneous() -> bool:
    """Whether all hosts have as many workers."""
    return topology.is_homogeneous(group().hosts)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    raise NotThere("timelines are not there: UNDERTOW_TRACE names a folder for a record of every stage")


def stop_timeline() -> None:
    """There is none."""


# Nothing of what Horovod can be built with is used: bytes travel over our own connections.


def _is_not_used() -> bool:
    return False


def _has_no_version() -> int:
    return 0


mpi_built = mpi_enabled = mpi_threads_supported = gloo_built = gloo_enabled = _is_not_used
ddl_built = ccl_built = cuda_built = rocm_built = _is_not_used
nccl_built = _has_no_version
