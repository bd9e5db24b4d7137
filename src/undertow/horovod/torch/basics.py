"""Who takes part, and where: `init`, ranks and sizes, and honest answers about what is built in.

In: our own settings and group.  Out: the numbers under Horovod's names.  A process that was forked after `init`, as
workers of a data loader are, has the numbers of the process it comes from, and makes no calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from undertow.errors import ConfigError
from undertow.horovod import topology
from undertow.horovod.errors import BadCall, NotThere, translated
from undertow.horovod.place import Place
from undertow.runtime import process
from undertow.runtime.group import Group

_at_shutdown: list[Callable[[], None]] = []
_place: Place | None = None  # in the job, once somebody has asked
_hosts: Sequence[str] = ()  # of all its workers
_pid = 0  # of the process that takes part in it


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
    os.environ.update(_find_place().to_environment())
    register_static(process_sets)


def _find_place() -> Place:
    """Return this worker's numbers, or those of the worker that this process was forked from."""
    global _place, _hosts, _pid
    if _place is not None and _is_forked():
        return _place
    world = group()
    if _place is None or _pid != os.getpid():
        settings = process.settings()
        _place = Place(
            rank=world.rank,
            size=world.size,
            local_rank=settings.local_rank,
            local_size=settings.local_world_size,
            cross_rank=topology.cross_rank(world.hosts, world.rank),
            cross_size=topology.cross_size(world.hosts),
        )
        _hosts, _pid = world.hosts, os.getpid()
        process.at_shutdown(_leave_place)
    return _place


def _leave_place() -> None:
    """This process has left the job.  One that is forked from it has not: its place stays."""
    global _place
    if os.getpid() == _pid:
        _place = None


def _is_forked() -> bool:
    """Whether this process comes from a worker, and has not joined the job itself."""
    return _place is not None and os.getpid() != _pid and not process.is_joined_by_script()


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
    """Whether `init` was called, here or before this process was forked.

    Workers that were joined for a single-process script do not count.
    """
    return process.is_joined_by_script() or _is_forked()


def group() -> Group:
    """The workers of this job."""
    if not process.is_joined_by_script():
        if _is_forked():
            raise BadCall(
                "this process was forked from a worker, as those of a DataLoader are: it has hvd.rank() and the like, "
                "but it cannot take part in calls. Make them in the worker itself"
            )
        raise ConfigError("Horovod is not initialised: call hvd.init() first")
    return process.default_group()


def rank() -> int:
    """This worker's number, from 0 to `size() - 1`."""
    return _find_place().rank


def size() -> int:
    """How many workers there are."""
    return _find_place().size


def local_rank() -> int:
    """This worker's number on its own host: choose the device with it."""
    return _find_place().local_rank


def local_size() -> int:
    """How many workers run on this host."""
    return _find_place().local_size


def cross_rank() -> int:
    """The number of this worker's host."""
    return _find_place().cross_rank


def cross_size() -> int:
    """How many hosts there are."""
    return _find_place().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have as many workers."""
    _find_place()
    return topology.is_homogeneous(_hosts)


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
