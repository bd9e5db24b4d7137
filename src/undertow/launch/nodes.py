"""The hosts of a job meet, before any worker is started.

In: the job as each host was told.  Out: a `Seat`: which ranks are here, where
the workers will meet, and the token they share.
The hosts meet at the master's address and port, which is closed again before any
worker starts: torch's own store needs that port.  The workers' meeting point is
another one, on a port given by the system, and lives as long as the first launcher.
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

from undertow.coordinator.meeting import MAX_SIZE, WORKERS_MET
from undertow.coordinator.meeting_point import format_address
from undertow.coordinator.rendezvous import MeetingPoint, attend, parse_address
from undertow.core.decoding import Decoder
from undertow.errors import PeerLost, Refused
from undertow.launch.host_line import HostLine
from undertow.launch.host_watch import SILENCE_S, HostPlace, describe_cut, describe_silence
from undertow.launch.job import Job
from undertow.wire.routes import look_up


@dataclass(frozen=True, kw_only=True)
class Seat:
    """This host's part of the job."""

    node_rank: int
    first_rank: int
    nproc: int
    world_size: int
    master_addr: str
    master_port: int
    rendezvous: str
    token: str
    start_timeout_s: float
    is_checked: bool = False  # because one of the hosts wishes it


class NodeCard(msgspec.Struct, frozen=True, array_like=True):
    """What a host tells the others; only the first one fills `rendezvous`, `token` and `line`."""

    nproc: Annotated[int, msgspec.Meta(ge=1, le=MAX_SIZE)]
    rendezvous: str = ""
    token: str = ""
    is_checked: bool = False
    host: str = ""
    line: str = ""  # where the first launcher listens to the others


_cards: Decoder[NodeCard] = Decoder(NodeCard, "what another host says of itself")


@contextmanager
def meet(job: Job, notify: Callable[[str], None], line: HostLine) -> Iterator[Seat]:
    """Agree with the other hosts; the workers' meeting point and the line to the other launchers stay open inside."""
    token = job.token or secrets.token_hex(16)
    with ExitStack() as stack:
        rendezvous = address = ""
        stack.push(lambda kind, error, trace: line.close(_describe_giving_up(error)))
        if job.node_rank == 0:
            if job.nnodes > 1:
                address = line.listen(job.master_addr, token.encode())
            point = MeetingPoint(job.master_addr, 0, token.encode(), on_complete=lambda name: _note_met(name, line))
            stack.callback(point.close)
            point.start()
            rendezvous = point.address
        card = NodeCard(job.nproc, rendezvous, token, job.is_checked, socket.gethostname(), address)
        hub = _resolve(job.master_addr) if job.node_rank else ""  # now: after the rendezvous the first host waits
        cards = [card] if job.nnodes == 1 else _exchange(job, card, notify=notify)
        _prepare_start(job, cards, line, hub)
        yield _place(job, cards)


def _exchange(job: Job, card: NodeCard, *, notify: Callable[[str], None]) -> list[NodeCard]:
    """Everybody's card; node 0 lends the master's port to the meeting and frees it at its end."""
    guard = job.token.encode()  # empty when there is no shared secret: then anyone on the network could join
    with ExitStack() as stack:
        if job.node_rank == 0:
            _warn(job, notify)
            point = MeetingPoint(job.master_addr, job.master_port, guard)
            stack.callback(point.close)
            point.start()
        else:
            card = NodeCard(job.nproc, is_checked=job.is_checked, host=card.host)
        master = format_address(job.master_addr, job.master_port)
        payloads = _attend(job, master, guard, meeting="hosts", payload=msgspec.msgpack.encode(card))
    return [_cards.decode(payload) for payload in payloads]


def _prepare_start(job: Job, cards: list[NodeCard], line: HostLine, hub: str) -> None:
    """Return when all launchers are connected, and workers may start; raises `PeerLost` if one is gone by then.

    Node 0 comes here after it closed the master's port, so no worker mistakes our meeting for torch's store.
    """
    places = [HostPlace(card.host, _count_before(cards, host), card.nproc) for host, card in enumerate(cards)]
    if job.node_rank:
        _dial(job, cards[0], places[0], line, hub)
    line.start(job.node_rank, places)
    if job.nnodes > 1:
        line.wait_for_start()


def _resolve(name: str) -> str:
    """The address of a host, or its name if it is not known yet: looking it up may take seconds."""
    try:
        return str(look_up(name)[0][4][0])
    except OSError:
        return name


def _dial(job: Job, card: NodeCard, place: HostPlace, line: HostLine, hub: str) -> None:
    address = format_address(hub, parse_address(card.line)[1])
    hint = f"at {address}; can this host reach that port? No worker was started"
    try:
        line.dial(address, card.token.encode(), node_rank=job.node_rank, timeout_s=SILENCE_S)
    except TimeoutError:
        raise PeerLost(f"{describe_silence(place, 0, SILENCE_S)} {hint}") from None
    except (OSError, Refused) as error:  # the token is its own: it can only be gone, or out of reach
        raise PeerLost(f"{describe_cut(place, 0)} ({error}) {hint}") from None


def _count_before(cards: list[NodeCard], node_rank: int) -> int:
    """How many workers there are on the hosts before this one."""
    return sum(card.nproc for card in cards[:node_rank])


def _note_met(meeting: str, line: HostLine) -> None:
    if meeting == WORKERS_MET:
        line.post(lambda watch: watch.note_met())


def _describe_giving_up(error: BaseException | None) -> str:
    """Why this launcher leaves the others; empty if in order."""
    if error is None:
        return ""
    return "was interrupted" if isinstance(error, KeyboardInterrupt) else f"gave up ({error})"


def _attend(job: Job, address: str, token: bytes, *, meeting: str, payload: bytes) -> list[bytes]:
    place = {"rank": job.node_rank, "size": job.nnodes}
    try:
        return attend(address, token, meeting=meeting, **place, payload=payload, timeout_s=job.start_timeout_s)
    except PeerLost as error:
        raise PeerLost(f"not all hosts have met (their ranks are the --node-rank): {error}") from None
    except Refused as error:
        raise Refused(f"{address}: {error}; set the same UNDERTOW_TOKEN on every host, or on none") from None


def _place(job: Job, cards: list[NodeCard]) -> Seat:
    return Seat(
        node_rank=job.node_rank,
        first_rank=_count_before(cards, job.node_rank),
        nproc=job.nproc,
        world_size=sum(card.nproc for card in cards),
        master_addr=job.master_addr,
        master_port=job.master_port if job.nnodes > 1 else choose_port(job.master_addr, job.master_port),
        rendezvous=cards[0].rendezvous,
        token=cards[0].token,
        start_timeout_s=job.start_timeout_s,
        is_checked=any(card.is_checked for card in cards),
    )


def choose_port(host: str, port: int) -> int:
    """A port that is free now (the given one, if any); it is left free for torch's own store."""
    point = MeetingPoint(host, port, b"")
    point.close()
    return int(point.address.rpartition(":")[2])


def _warn(job: Job, notify: Callable[[str], None]) -> None:
    if not job.token:
        notify(
            "the job's token is handed to the other hosts without a shared secret; "
            "to close that, set the same UNDERTOW_TOKEN on every host"
        )
    here = str(look_up(job.master_addr)[0][4][0])
    if here != job.master_addr and ipaddress.ip_address(here).is_loopback:
        notify(f"{job.master_addr} is {here} on this host, which others cannot reach: give --master-addr an IP address")
