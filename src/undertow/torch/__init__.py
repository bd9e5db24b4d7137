"""The torch doors: `DistributedDataParallel`, `parallelize`, `distribute`, and the proof that replicas are the same."""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "undertow.torch needs PyTorch, which is not installed: pip install 'undertow[torch]'", name="torch"
    ) from error

from undertow.torch.data.distribution import distribute
from undertow.torch.ddp import DistributedDataParallel
from undertow.torch.parallel import find_coordinator, flush, parallelize
from undertow.torch.replicas import verify_replicas

__all__ = ["DistributedDataParallel", "distribute", "find_coordinator", "flush", "parallelize", "verify_replicas"]
