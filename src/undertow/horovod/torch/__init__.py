"""All names of Horovod's torch module, on top of undertow's engine: `import horovod.torch as hvd` imports it.

Not supported, and refused with advice: Adasum, elastic training.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from undertow.horovod.errors import ELASTIC, NotThere
from undertow.horovod.torch import mpi_ops
from undertow.horovod.torch.compression import Compression
from undertow.horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from undertow.horovod.torch.mpi_ops import *  # noqa: F403  # it defines __all__
from undertow.horovod.torch.optimizer import DistributedOptimizer
from undertow.horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    *mpi_ops.__all__,
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def _check_has_gpu() -> bool:
    return torch.cuda.is_available()


def __getattr__(name: str) -> NoReturn:
    if name == "elastic":
        raise NotThere(f"hvd.elastic: {ELASTIC}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
