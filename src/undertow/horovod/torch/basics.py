"""`init`, `shutdown`, ranks and sizes, and the functions that report what Horovod was built with.

In: undertow's settings and group.  Out: the numbers under Horovod's names.  A process that was forked after `init`,
such as a data loader's worker, has the numbers of its parent and cannot make calls.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from undertow.engine.interface import Group
from undertow.errors import ConfigError
from undertow.horovod import worker_numbers
from undertow.horovod.errors import BadCall, NotThere, translated
from undertow.horovod.worker_numbers import WorkerNumbers
from undertow.runtime import process
from undertow.torch_groups import TorchRendezvous

# Horovod's public names in this module.
__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

_own_numbers: WorkerNumbers | None = None  # set on first use
_hosts: Sequence[str] = ()  # of all workers
_pid = 0  # of the process that has joined the job


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the other workers; see `undertow.init`.  A second call changes nothing, except that it adds process sets.

    Sets HOROVOD_RANK and the like.
    """
    from undertow.horovod.torch.process_sets import register_static

    if comm is not None:
        raise NotThere("hvd.init() covers all ranks of the job: leave comm out, and use process_sets for subsets")
    with translated():
        process.give_way("hvd.init()")
        process.init(TorchRendezvous())
    os.environ.update(_find_numbers().to_environment())
    register_static(process_sets)


def _find_numbers() -> WorkerNumbers:
    """Return this worker's numbers, or those of the worker that this process was forked from."""
    global _own_numbers, _hosts, _pid
    if _own_numbers is not None and _is_forked():
        return _own_numbers
    world = group()
    if _own_numbers is None or _pid != os.getpid():
        _hosts, _pid = world.shape.hosts[: world.size], os.getpid()
        _own_numbers = worker_numbers.find_numbers(process.settings(), rank=world.rank, hosts=_hosts)
        process.at_shutdown(_forget_numbers)
    return _own_numbers


def _forget_numbers() -> None:
    """Forget the numbers when this process leaves the job; a process forked from it keeps them."""
    global _own_numbers
    if os.getpid() == _pid:
        _own_numbers = None


def _is_forked() -> bool:
    """Return whether this process was forked from a worker, and has not joined the job itself."""
    return _own_numbers is not None and os.getpid() != _pid and not process.is_joined_by_script()


def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ranks of every process set by its number.  The name is Horovod's."""
    from undertow.horovod.torch.process_sets import find_rank_sets

    return find_rank_sets().to_dict()


def shutdown() -> None:
    """Leave the job."""
    process.shutdown()


def is_initialized() -> bool:
    """Return whether `init` was called, in this process or before it was forked.

    It does not count if undertow has joined the workers for a single-process script.
    """
    return process.is_joined_by_script() or _is_forked()


def group() -> Group:
    """Return the group of all workers of this job."""
    if not process.is_joined_by_script():
        if _is_forked():
            raise BadCall(
                "this process was forked from a worker, like a DataLoader's processes: it has hvd.rank() and the like, "
                "but cannot take part in collectives. Call them in the worker itself"
            )
        raise ConfigError("Horovod is not initialised: call hvd.init() first")
    return process.default_group()


def rank() -> int:
    """Return this worker's number, from 0 to `size() - 1`."""
    return _find_numbers().rank


def size() -> int:
    """Return the number of workers."""
    return _find_numbers().size


def local_rank() -> int:
    """Return this worker's number on its own host, which chooses its device."""
    return _find_numbers().local_rank


def local_size() -> int:
    """Return the number of workers on this host."""
    return _find_numbers().local_size


def cross_rank() -> int:
    """Return the number of this worker's host."""
    return _find_numbers().cross_rank


def cross_size() -> int:
    """Return the number of hosts."""
    return _find_numbers().cross_size


def is_homogeneous() -> bool:
    """Return whether all hosts have the same number of workers."""
    _find_numbers()
    return worker_numbers.is_homogeneous(_hosts)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    raise NotThere("Horovod's timeline is not supported: set UNDERTOW_TRACE to a folder for undertow's own trace")


def stop_timeline() -> None:
    """Do nothing: there is no timeline."""


# undertow uses none of the libraries that Horovod can be built with: it has its own connections.


def _is_not_used() -> bool:
    return False


def _has_no_version() -> int:
    return 0


mpi_built = mpi_enabled = mpi_threads_supported = gloo_built = gloo_enabled = _is_not_used
ddl_built = ccl_built = cuda_built = rocm_built = _is_not_used
nccl_built = _has_no_version
