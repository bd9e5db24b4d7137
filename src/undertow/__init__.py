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
from undertow.release import __version__

# The functions import the engine when called, so that the command line starts without it.
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
    """Join the other workers of this job.  Call it once, before anything else.

    Each setting is taken from the arguments, else from the environment (`undertow env` lists
    the variables), else from the defaults.  Without a launcher, this is a job of one worker.
    Raises `PeerLost` if a worker does not arrive in time, `ConfigError` if a setting is not valid.
    """
    from undertow.runtime import process
    from undertow.torch_groups import TorchRendezvous

    process.init(TorchRendezvous(), **settings)


def is_initialized() -> bool:
    """Return whether `init` was called and `shutdown` was not called after it."""
    from undertow.runtime import process

    return process.is_joined_by_script()


def rank() -> int:
    """Return this worker's rank, from 0 to `world_size() - 1`."""
    from undertow.runtime import process

    return process.default_group().rank


def world_size() -> int:
    """Return the number of workers."""
    from undertow.runtime import process

    return process.default_group().size


def local_rank() -> int:
    """Return this worker's rank on its host, which determines its device."""
    from undertow.runtime import process

    return process.settings().local_rank


def local_world_size() -> int:
    """Return the number of workers on this host."""
    from undertow.runtime import process

    return process.settings().local_world_size


def barrier() -> None:
    """Wait until all workers have called this."""
    from undertow.runtime import process

    process.default_group().barrier()


def bytes_sent() -> int:
    """Return the number of bytes that this worker has sent so far, headers included."""
    from undertow.runtime import process

    return process.default_group().bytes_sent


def shutdown() -> None:
    """Leave the job in an orderly way.  Never hangs.  Called automatically when the process ends.

    Also reverts the changes that `undertow run` has made to torch for a script.
    """
    from undertow.runtime import process
    from undertow.script import preparation

    preparation.undo()
    process.shutdown()
