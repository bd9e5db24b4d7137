"""Systems of other packages that the bench compares with undertow: torch DDP and Horovod, with their defaults.

Their bucket and buffer sizes are scaled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from undertow.tools.lab.systems.system import System, find_missing

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

FUSION_BYTES = 128 << 20  # Horovod's own default


class Ddp(System):
    name = "ddp"
    about = "torch DistributedDataParallel over Gloo"
    warm_up_steps = 3  # it rebuilds its buckets after the first step

    def join(self) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")

    def wrap(self, model: nn.Module, optimizer: Optimizer, *, scale: float) -> tuple[nn.Module, Optimizer]:
        from torch.nn.parallel import DistributedDataParallel

        with scaled_buckets(scale):
            return DistributedDataParallel(model), optimizer

    def leave(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


@contextmanager
def scaled_buckets(scale: float) -> Iterator[None]:
    """Scale torch's default bucket sizes.  Passing a size to DDP instead would drop the smaller first bucket."""
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


class Horovod(System):
    """Horovod over its own Gloo, if it is installed.

    Its workers find each other through a small server that its launcher would start.  Here rank 0
    starts it, and publishes its port in torch's store at MASTER_ADDR and MASTER_PORT.
    """

    name = "horovod"
    about = "Horovod over Gloo"
    is_restless = True  # its workers poll each other for work every millisecond

    def __init__(self) -> None:
        self._held: list[Any] = []  # keeps the store and rank 0's server alive until the job ends

    def find_obstacle(self) -> str | None:
        return find_missing("torch") or find_missing("horovod")

    def variables(self, *, scale: float, slowdown: float = 1.0) -> Mapping[str, str]:
        return {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_FUSION_THRESHOLD": str(max(1, round(FUSION_BYTES / scale))),
        }

    def join(self) -> None:
        import horovod.torch as hvd
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        rank, size, master = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"]
        store = TCPStore(master, int(os.environ["MASTER_PORT"]), size, rank == 0)
        self._held.append(store)
        if rank == 0:
            store.set("horovod", str(self._serve(size)))
        place = {"RANK": rank, "SIZE": size, "LOCAL_RANK": 0, "LOCAL_SIZE": 1, "CROSS_RANK": rank, "CROSS_SIZE": size}
        os.environ.update({f"HOROVOD_{name}": str(value) for name, value in place.items()})
        os.environ["HOROVOD_HOSTNAME"] = _host(rank)
        os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = master
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = store.get("horovod").decode()
        os.environ["HOROVOD_GLOO_IFACE"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        hvd.init()

    def _serve(self, size: int) -> int:
        from horovod.runner.common.util.hosts import SlotInfo
        from horovod.runner.http.http_server import RendezvousServer

        server = RendezvousServer()
        port: int = server.start()
        place = {"local_rank": 0, "size": size, "local_size": 1, "cross_size": size}
        server.init([SlotInfo(hostname=_host(rank), rank=rank, cross_rank=rank, **place) for rank in range(size)])
        self._held.append(server)
        return port

    def wrap(self, model: nn.Module, optimizer: Optimizer, *, scale: float) -> tuple[nn.Module, Optimizer]:
        import horovod.torch as hvd

        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def leave(self) -> None:
        import horovod.torch as hvd

        hvd.shutdown()


def _host(rank: int) -> str:
    return f"host{rank}"
