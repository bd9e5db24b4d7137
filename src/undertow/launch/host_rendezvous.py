"""Rendezvous of a job's hosts, before any worker is started.

In: the job, as given on each host's command line.  Out: a `HostAssignment`: which ranks run here, where
the workers will meet, and the token they share.
The hosts meet at the master's address and port, which is closed again before any
worker starts, because torch's own store needs that port.  The workers meet at
another port, chosen by the system, which stays open while the first launcher runs.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated

import msgspec

from undertow.decoding import Decoder
from undertow.engine.coordinator.rendezvous import RendezvousServer, attend, parse_address
from undertow.engine.coordinator.rendezvous_table import MAX_SIZE, WORKERS_MET
from undertow.engine.wire.listeners import format_address
from undertow.engine.wire.routes import look_up
from undertow.errors import PeerLost, Refused
from undertow.launch.host_watch import SILENCE_S, HostRanks, describe_cut, describe_silence
from undertow.launch.job import Job
from undertow.launch.launcher_link import LauncherLink


@dataclass(frozen=True, kw_only=True)
class HostAssignment:
    """Ranks, addresses and token of this host in a job."""

    node_rank: int
    first_rank: int
    nproc: int
    world_size: int
    master_addr: str
    master_port: int
    rendezvous: str
    token: str
    start_timeout_s: float
    is_checked: bool = False  # at least one host was started with --check


class NodeRecord(msgspec.Struct, frozen=True, array_like=True):
    """Data that a host sends to the others; only the first host fills `rendezvous`, `token` and `link_address`."""

    nproc: Annotated[int, msgspec.Meta(ge=1, le=MAX_SIZE)]
    rendezvous: str = ""
    token: str = ""
    is_checked: bool = False
    host: str = ""
    link_address: str = ""  # where the first launcher accepts the others' connections


_records: Decoder[NodeRecord] = Decoder(NodeRecord, "the record of another host")


@contextmanager
def join_hosts(job: Job, notify: Callable[[str], None], link: LauncherLink) -> Iterator[HostAssignment]:
    """Meet the other hosts; inside the block the workers' rendezvous and the link to the other launchers stay open."""
    token = job.token or secrets.token_hex(16)
    with ExitStack() as stack:
        rendezvous = address = ""
        stack.push(lambda kind, error, trace: link.close(_describe_giving_up(error)))
        if job.node_rank == 0:
            if job.nnodes > 1:
                address = link.listen(job.master_addr, token.encode())
            server = RendezvousServer(
                job.master_addr, 0, token.encode(), on_complete=lambda name: _note_met(name, link)
            )
            stack.callback(server.close)
            server.start()
            rendezvous = server.address
        own = NodeRecord(job.nproc, rendezvous, token, job.is_checked, socket.gethostname(), address)
        # Looked up now, because after the rendezvous the first host waits for this one.
        hub = _resolve(job.master_addr) if job.node_rank else ""
        records = [own] if job.nnodes == 1 else _exchange(job, own, notify=notify)
        _prepare_start(job, records, link, hub)
        yield _assign(job, records)


def _exchange(job: Job, own: NodeRecord, *, notify: Callable[[str], None]) -> list[NodeRecord]:
    """Return the records of all hosts; node 0 uses the master's port for this, and frees it at the end."""
    secret = job.token.encode()  # may be empty: then any process on the network could join
    with ExitStack() as stack:
        if job.node_rank == 0:
            _warn(job, notify)
            server = RendezvousServer(job.master_addr, job.master_port, secret)
            stack.callback(server.close)
            server.start()
        else:
            own = NodeRecord(job.nproc, is_checked=job.is_checked, host=own.host)
        return [_records.decode(payload) for payload in _attend(job, secret, msgspec.msgpack.encode(own))]


def _prepare_start(job: Job, records: list[NodeRecord], link: LauncherLink, hub: str) -> None:
    """Return when all launchers are connected and workers may start; raise `PeerLost` if one is lost before that.

    Node 0 calls this after closing the master's port, so no worker mistakes our rendezvous for torch's store.
    """
    hosts = [HostRanks(record.host, _count_before(records, rank), record.nproc) for rank, record in enumerate(records)]
    if job.node_rank:
        _dial(job, records[0], hosts[0], link, hub)
    link.start(job.node_rank, hosts)
    if job.nnodes > 1:
        link.wait_for_start()


def _resolve(name: str) -> str:
    """Return the address of a host, or its name if the lookup fails; the lookup may take seconds."""
    try:
        return str(look_up(name)[0][4][0])
    except OSError:
        return name


def _dial(job: Job, record: NodeRecord, first: HostRanks, link: LauncherLink, hub: str) -> None:
    address = format_address(hub, parse_address(record.link_address)[1])
    hint = f"at {address}; can this host reach that port? No worker was started"
    try:
        link.dial(address, record.token.encode(), node_rank=job.node_rank, timeout_s=SILENCE_S)
    except TimeoutError:
        raise PeerLost(f"{describe_silence(first, 0, SILENCE_S)} {hint}") from None
    except (OSError, Refused) as error:  # that launcher sent the token a moment ago, so it is gone or out of reach
        raise PeerLost(f"{describe_cut(first, 0)} ({error}) {hint}") from None


def _count_before(records: list[NodeRecord], node_rank: int) -> int:
    """Count the workers on the hosts before this one."""
    return sum(record.nproc for record in records[:node_rank])


def _note_met(name: str, link: LauncherLink) -> None:
    if name == WORKERS_MET:
        link.post(lambda watch: watch.note_met())


def _describe_giving_up(error: BaseException | None) -> str:
    """Return why this launcher leaves the others, or "" for a normal end."""
    if error is None:
        return ""
    return "was interrupted" if isinstance(error, KeyboardInterrupt) else f"gave up ({error})"


def _attend(job: Job, secret: bytes, payload: bytes) -> list[bytes]:
    address = format_address(job.master_addr, job.master_port)
    rank, size, timeout_s = job.node_rank, job.nnodes, job.start_timeout_s
    try:
        return attend(address, secret, name="hosts", rank=rank, size=size, payload=payload, timeout_s=timeout_s)
    except PeerLost as error:
        raise PeerLost(f"not all hosts have met (their ranks are the --node-rank): {error}") from None
    except Refused as error:
        reason = f"{error.reason}; set the same UNDERTOW_TOKEN on every host, or on none"
        raise Refused(reason, address=address) from None


def _assign(job: Job, records: list[NodeRecord]) -> HostAssignment:
    return HostAssignment(
        node_rank=job.node_rank,
        first_rank=_count_before(records, job.node_rank),
        nproc=job.nproc,
        world_size=sum(record.nproc for record in records),
        master_addr=job.master_addr,
        master_port=job.master_port if job.nnodes > 1 else choose_port(job.master_addr, job.master_port),
        rendezvous=records[0].rendezvous,
        token=records[0].token,
        start_timeout_s=job.start_timeout_s,
        is_checked=any(record.is_checked for record in records),
    )


def choose_port(host: str, port: int) -> int:
    """Return a port that is free now (the given one, unless 0), and leave it free for torch's own store."""
    server = RendezvousServer(host, port, b"")
    server.close()
    return int(server.address.rpartition(":")[2])


def _warn(job: Job, notify: Callable[[str], None]) -> None:
    if not job.token:
        notify(
            "the job's token is sent to the other hosts unprotected, because UNDERTOW_TOKEN is not set; "
            "set the same UNDERTOW_TOKEN on every host to keep strangers out"
        )
    here = str(look_up(job.master_addr)[0][4][0])
    if here != job.master_addr and ipaddress.ip_address(here).is_loopback:
        notify(f"{job.master_addr} is {here} on this host, which others cannot reach: give --master-addr an IP address")
