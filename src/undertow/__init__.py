"""undertow: exact data-parallel training that hides the network under the computation.

import undertow, undertow.torch
undertow.init()
model = undertow.torch.DistributedDataParallel(model)
"""

from __future__ import annotations

from typing import Any

from undertow.errors import (
    ConfigError,
    DriftError,
    LabError,
    MismatchError,
    PeerLost,
    PlanError,
    Refused,
    UndertowError,
)

__version__ = "0.1.0"
# The engine is imported inside of the functions: the command line starts without it.
__all__ = [
    "ConfigError",
    "DriftError",
    "LabError",
    "MismatchError",
    "PeerLost",
    "PlanError",
    "Refused",
    "UndertowError",
    "__version__",
    "barrier",
    "bytes_sent",
    "init",
    "is_initialized",
    "local_rank",
    "local_world_size",
    "rank",
    "shutdown",
    "world_size",
]


def init(**settings: Any) -> None:
    """Join the other workers of this job; call it once, before anything else.

    Settings come from here, then from the environment (`undertow env` lists them), then
    from the defaults.  Under no launcher at all this is a job of one worker.
    Raises `PeerLost` if a worker does not arrive in time, `ConfigError` on bad settings.
    """
    from undertow.runtime import process

    process.init(**settings)


def is_initialized() -> bool:
    """Whether `init` was called, and `shutdown` not yet."""
    from undertow.runtime import process

    return process.is_joined_by_script()


def rank() -> int:
    """This worker's number, from 0 to `world_size() - 1`."""
    from undertow.runtime import process

    return process.default_group().rank


def world_size() -> int:
    """How many workers there are."""
    from undertow.runtime import process

    return process.default_group().size


def local_rank() -> int:
    """This worker's number on its own host: choose the device with it."""
    from undertow.runtime import process

    return process.settings().local_rank


def local_world_size() -> int:
    """How many workers run on this host."""
    from undertow.runtime import process

    return process.settings().local_world_size


def barrier() -> None:
    """Wait until all workers are here."""
    from undertow.runtime import process

    process.default_group().barrier()


def bytes_sent() -> int:
    """Bytes that this worker has handed to the network so far, headers included."""
    from undertow.runtime import process

    return process.default_group().bytes_sent


def shutdown() -> None:
    """Leave the job in order.  Done at the end of the process too; never hangs.

    What `undertow run` has changed of torch for a script is undone as well.
    """
    from undertow.runtime import process
    from undertow.script import preparation

    preparation.undo()
    process.shutdown()
