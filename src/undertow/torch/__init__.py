"""The torch door: `DistributedDataParallel`, and the proof that replicas are the same."""

from __future__ import annotations

from undertow.torch.ddp import DistributedDataParallel
from undertow.torch.replicas import verify_replicas

__all__ = ["DistributedDataParallel", "verify_replicas"]
