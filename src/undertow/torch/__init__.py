"""The torch frontend: `DistributedDataParallel`, `parallelize`, `distribute`, and the check that replicas are equal."""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "undertow.torch needs PyTorch, which is not installed: pip install 'undertow[torch]'", name="torch"
    ) from error

from undertow.torch.data.distribution import distribute
from undertow.torch.ddp.parallelize import flush, parallelize, plan_of
from undertow.torch.ddp.wrapper import DistributedDataParallel
from undertow.torch.ranks.replicas import verify_replicas

__all__ = ["DistributedDataParallel", "distribute", "flush", "parallelize", "plan_of", "verify_replicas"]
