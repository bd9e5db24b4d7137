"""Formation of groups through torch's process groups and stores.

In: a `torch.distributed` store or process group, which the script or torchrun provides.  Out: a formed group.
The store is not authenticated, so the job's token passes through it in the clear.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from undertow.decoding import decode_text
from undertow.engine.client import formation
from undertow.engine.client.group import ConnectedGroup
from undertow.engine.interface import Group
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.routes import route_to, same_host_mark
from undertow.errors import ConfigError, PeerLost
from undertow.hidden import read_environment
from undertow.runtime import process
from undertow.settings import Settings, read_settings
from undertow.tracing.recorder import process_recorder

POLL_S = 0.01

log = logging.getLogger("undertow")


def group_for(process_group: Any = None) -> Group:
    """Return the group of these ranks; forms it through the process group's store if necessary."""
    if process.is_formed_for_script() and dist.is_available() and dist.is_initialized():
        process.give_way("init_process_group")
    if process_group is None and process.is_initialized():
        return process.default_group()
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            "this worker has not joined the others: call undertow.init(), or torch.distributed.init_process_group(), "
            "first"
        )
    chosen = process_group if process_group is not None else dist.group.WORLD
    if dist.get_rank(chosen) < 0:
        raise ConfigError("this rank is not in the given process group")
    return process.add_group(chosen, lambda: _form_recorded(chosen))


def _form_recorded(process_group: Any) -> ConnectedGroup:
    settings = read_settings(rank=0, world_size=1)  # the process group sets both, not the environment

    def form() -> ConnectedGroup:
        return _form_process_group(process_group, process.loop(), settings)

    if dist.get_world_size(process_group) < dist.get_world_size():
        if (settings.trace or settings.live) and not process_recorder.is_on:
            log.warning("a model that only some of the workers train is neither traced nor shown in the live view")
        return form()
    return process.form_recorded(settings, form, size=dist.get_world_size())


def form_world(name: str, settings: Settings, loop: Loop) -> ConnectedGroup:
    """Form the group of all workers through torchrun's store, or the default process group's."""
    if dist.is_initialized():
        return _form_process_group(dist.group.WORLD, loop, settings)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        settings.master_addr,
        settings.master_port,
        is_master=False,
        timeout=timedelta(seconds=settings.start_timeout_s),
    )
    # torchrun keeps its store when it restarts the workers: they must not find keys of the previous attempt, which only
    # some ranks may have written.
    attempt = read_environment().get("TORCHELASTIC_RESTART_COUNT", "0")
    return _form(store, f"{name}-attempt-{attempt}", settings, loop)


def _form_process_group(process_group: Any, loop: Loop, settings: Settings) -> ConnectedGroup:
    """Form the group of a process group's ranks, through its own store."""
    store = dist.distributed_c10d._get_process_group_store(process_group)
    rank, names = dist.get_rank(process_group), dist.get_process_group_ranks(process_group)
    return _form(store, "process-group", replace(settings, rank=rank, world_size=len(names)), loop, names)


def _form(store: Any, name: str, settings: Settings, loop: Loop, names: Sequence[int] = ()) -> ConnectedGroup:
    # Each rank arrives once per generation, so that a later group on the same store finds no old keys.
    generation = store.add(f"undertow/{name}/arrivals/{settings.rank}", 1)
    prefix = f"undertow/{name}/{generation}"

    def meet(topic: str, payload: bytes) -> list[bytes]:
        return _exchange(store, f"{prefix}/{topic}", settings, payload, names)

    address = settings.address or _choose_address(meet, _host_of(store))
    return formation.form(
        lambda payload: meet("cards", payload), name=prefix, settings=settings, loop=loop, address=address, names=names
    )


def _choose_address(meet: Any, host: str | None) -> str:
    """Return the address of the interface that routes to the store's host, or loopback if all ranks share one host."""
    marks = meet("hosts", same_host_mark().encode())
    if len(set(marks)) == 1:
        return "127.0.0.1"
    # Without a host to route to (a file store), the default route decides; nothing is sent to this address.
    own = route_to(host or "192.0.2.1")
    owns = [decode_text(data, "the address of another worker") for data in meet("addresses", own.encode())]
    if own.startswith("127.") or own == "::1":
        # On the store's host, its name may resolve to loopback: route to a peer on another host instead.
        return next((route_to(peer) for peer in owns if not peer.startswith("127.")), own)
    return own


def _host_of(store: Any) -> str | None:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None)


def _exchange(store: Any, prefix: str, settings: Settings, payload: bytes, names: Sequence[int]) -> list[bytes]:
    size, timeout_s = settings.world_size, settings.start_timeout_s
    store.set(f"{prefix}/{settings.rank}", payload)
    keys = [f"{prefix}/{peer}" for peer in range(size)]
    deadline = time.monotonic() + timeout_s
    while not store.check(keys):
        if time.monotonic() > deadline:
            absent = [names[peer] if names else peer for peer, key in enumerate(keys) if not store.check([key])]
            raise PeerLost(ranks=absent, event=f"of {size} did not arrive within {timeout_s:g} s")
        time.sleep(POLL_S)
    return [bytes(store.get(key)) for key in keys]
