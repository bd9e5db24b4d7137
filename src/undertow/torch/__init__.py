"""The torch door: `DistributedDataParallel`, and the proof that replicas are the same."""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "undertow.torch needs PyTorch, which is not installed: pip install 'undertow[torch]'", name="torch"
    ) from error

from undertow.torch.ddp import DistributedDataParallel
from undertow.torch.replicas import verify_replicas

__all__ = ["DistributedDataParallel", "verify_replicas"]
