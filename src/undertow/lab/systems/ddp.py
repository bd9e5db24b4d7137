"""torch's own DistributedDataParallel over Gloo, with its defaults; its bucket sizes follow the scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from undertow.lab.systems.system import find_missing

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Ddp:
    name = "ddp"
    about = "torch DistributedDataParallel over Gloo"
    warm_up_steps = 3  # it rearranges its buckets after the first one
    is_restless = False

    def find_obstacle(self) -> str | None:
        return find_missing("torch")

    def variables(self, *, scale: float, slowdown: float = 1.0) -> Mapping[str, str]:
        return {}

    def join(self) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")

    def wrap(self, model: nn.Module, optimizer: Optimizer, *, scale: float) -> tuple[nn.Module, Optimizer]:
        from torch.nn.parallel import DistributedDataParallel

        with scaled_buckets(scale):
            return DistributedDataParallel(model), optimizer

    def flush(self) -> None:
        pass  # backward has waited already

    def bytes_sent(self) -> int | None:
        return None

    def leave(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


@contextmanager
def scaled_buckets(scale: float) -> Iterator[None]:
    """Make torch's default bucket sizes smaller: giving one by hand would drop the smaller first bucket."""
    import torch.distributed
    import torch.nn.parallel.distributed

    first: Any = torch.distributed
    rest: Any = torch.nn.parallel.distributed
    first_bytes, rest_mb = first._DEFAULT_FIRST_BUCKET_BYTES, rest._DEFAULT_BUCKET_CAP_MB
    first._DEFAULT_FIRST_BUCKET_BYTES = max(1, round(first_bytes / scale))
    rest._DEFAULT_BUCKET_CAP_MB = rest_mb / scale
    try:
        yield
    finally:
        first._DEFAULT_FIRST_BUCKET_BYTES, rest._DEFAULT_BUCKET_CAP_MB = first_bytes, rest_mb
