"""Meeting through torch's own store, where torchrun or a process group brought one.

In: a `torch.distributed` store or process group.  Out: a formed group.
The store is torch's: it has no token, so ours travels through it in the clear.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from undertow.core.decoding import decode_text
from undertow.errors import PeerLost
from undertow.hidden import read_environment
from undertow.runtime import formation
from undertow.runtime.group import Group
from undertow.settings import Settings
from undertow.wire.loop import Loop

POLL_S = 0.01


def form_world(name: str, settings: Settings, loop: Loop) -> Group:
    """The group of all workers, through torchrun's store or the default process group's."""
    if dist.is_initialized():
        return form_process_group(dist.group.WORLD, loop, settings)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        settings.master_addr,
        settings.master_port,
        is_master=False,
        timeout=timedelta(seconds=settings.start_timeout_s),
    )
    # torchrun keeps its store when it starts the workers again: what the attempt before has
    # left in it, perhaps of some ranks only, must not be found.
    attempt = read_environment().get("TORCHELASTIC_RESTART_COUNT", "0")
    return _form(store, f"{name}-attempt-{attempt}", settings.rank, settings.world_size, settings, loop)


def form_process_group(process_group: Any, loop: Loop, settings: Settings) -> Group:
    """The group of one process group's ranks, through its own store."""
    store = dist.distributed_c10d._get_process_group_store(process_group)
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    return _form(store, "process-group", rank, size, replace(settings, rank=rank, world_size=size), loop)


def _form(store: Any, name: str, rank: int, size: int, settings: Settings, loop: Loop) -> Group:
    # Each rank comes once per generation: a later group over the same store finds no old keys.
    generation = store.add(f"undertow/{name}/arrivals/{rank}", 1)
    prefix = f"undertow/{name}/{generation}"

    def meet(topic: str, payload: bytes) -> list[bytes]:
        return _exchange(store, f"{prefix}/{topic}", rank, size, payload, settings.start_timeout_s)

    address = settings.address or _choose_address(meet, _host_of(store))
    return formation.form(
        lambda payload: meet("cards", payload),
        name=prefix,
        rank=rank,
        size=size,
        settings=settings,
        loop=loop,
        address=address,
    )


def _choose_address(meet: Any, host: str | None) -> str:
    """The interface that routes to the store's host, or loopback where all share one host."""
    marks = meet("hosts", formation.same_host_mark().encode())
    if len(set(marks)) == 1:
        return "127.0.0.1"
    # Without a host to route to (a file store), the default route tells; nothing is sent there.
    own = formation.route_to(host or "192.0.2.1")
    owns = [decode_text(data, "the address of another worker") for data in meet("addresses", own.encode())]
    if own.startswith("127.") or own == "::1":
        # On the store's own host its name may well mean loopback: route to a peer elsewhere.
        return next((formation.route_to(peer) for peer in owns if not peer.startswith("127.")), own)
    return own


def _host_of(store: Any) -> str | None:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None)


def _exchange(store: Any, prefix: str, rank: int, size: int, payload: bytes, timeout_s: float) -> list[bytes]:
    store.set(f"{prefix}/{rank}", payload)
    keys = [f"{prefix}/{peer}" for peer in range(size)]
    deadline = time.monotonic() + timeout_s
    while not store.check(keys):
        if time.monotonic() > deadline:
            absent = [str(peer) for peer, key in enumerate(keys) if not store.check([key])]
            raise PeerLost(f"rank {', '.join(absent)} of {size} did not arrive within {timeout_s:g} s")
        time.sleep(POLL_S)
    return [bytes(store.get(key)) for key in keys]
