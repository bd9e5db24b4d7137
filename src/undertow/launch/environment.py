"""What a worker finds in its environment.

In: the launcher's own environment, the worker's place.  Out: a new mapping.
The names are torchrun's, so that any script and any framework finds its way.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from undertow.launch.nodes import Seat


def build_environment(base: Mapping[str, str], seat: Seat, *, local_rank: int) -> dict[str, str]:
    """The base with the worker's own variables on top; thread counts of the user win."""
    own = {
        "RANK": str(seat.first_rank + local_rank),
        "WORLD_SIZE": str(seat.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(seat.nproc),
        "GROUP_RANK": str(seat.node_rank),
        "MASTER_ADDR": seat.master_addr,
        "MASTER_PORT": str(seat.master_port),
        "UNDERTOW_RENDEZVOUS": seat.rendezvous,
        "UNDERTOW_TOKEN": seat.token,
        "UNDERTOW_START_TIMEOUT": f"{seat.start_timeout_s:g}",
        "PYTHONUNBUFFERED": "1",
    }
    # The order of a set of strings decides about data and labels: it must be the same in all workers.
    own |= {} if base.get("PYTHONHASHSEED") else {"PYTHONHASHSEED": str(zlib.crc32(seat.token.encode()))}
    threads = {"OMP_NUM_THREADS": "1"} if limits_threads(base, nproc=seat.nproc) else {}
    return {**base, **threads, **own}


def limits_threads(base: Mapping[str, str], *, nproc: int) -> bool:
    """As torchrun: several workers would each take all cores and slow each other down."""
    return nproc > 1 and not base.get("OMP_NUM_THREADS")
