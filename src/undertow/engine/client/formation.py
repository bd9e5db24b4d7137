"""Formation of a group: its workers exchange addresses and connect until every pair is connected.

In: a rendezvous (see `Meet`), this worker's settings.  Out: a `ConnectedGroup`.
The system chooses the ports; the interface is the one on the route to the coordinator.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import socket
import time
import zlib
from collections.abc import Callable, Sequence

import msgspec

from undertow.decoding import Count, Decoder
from undertow.engine.client.group import ConnectedGroup
from undertow.engine.coordinator.rendezvous import parse_address
from undertow.engine.core.shape import Shape
from undertow.engine.wire.loop import Loop
from undertow.engine.wire.routes import same_host_mark
from undertow.engine.wire.sockets import SocketTransport
from undertow.errors import ConfigError, Garbled, PeerLost, Refused
from undertow.settings import Checksum, Settings
from undertow.sizing import Sizes
from undertow.tracing.recorder import process_recorder

DIAL_TIMEOUT_S = 5.0
DIAL_PAUSE_S = 0.02

# Brings a payload to a rendezvous and returns the payloads of all ranks, in rank order.
Meet = Callable[[bytes], list[bytes]]


class WorkerContact(msgspec.Struct, frozen=True):
    """Payload of a worker for the others.  All ranks use the sizes, credit and checksum in rank 0's."""

    address: str
    local_address: str
    mark: str  # identifier of the host, see `same_host_mark`
    host: str
    token: str
    sizes: Sizes
    credit_bytes: Count
    checksum: Checksum


_contacts: Decoder[WorkerContact] = Decoder(WorkerContact, "the contact of another worker")


def form(
    meet: Meet,
    *,
    name: str,
    settings: Settings,
    loop: Loop,
    address: str,
    names: Sequence[int] = (),
) -> ConnectedGroup:
    """Meet the other workers and connect to all of them.  Raises `PeerLost` if one of them does not arrive.

    The settings' rank and size are those in this group.  If it has only some of the job's workers, `names` are their
    ranks in the whole job.
    """
    rank = settings.rank
    deadline = time.monotonic() + settings.start_timeout_s
    recorder = process_recorder.lend()
    transport = SocketTransport(
        loop,
        rank=rank,
        size=settings.world_size,
        host=address,
        silence_s=settings.silence_timeout_s,
        recorder=recorder,
    )
    group: ConnectedGroup | None = None
    try:
        contact = _own_contact(transport, settings)
        contacts = [_read_contact(data) for data in meet(msgspec.msgpack.encode(contact))]
        token = (settings.token or contacts[0].token).encode()
        job = zlib.crc32(name.encode(), zlib.crc32(token))
        shape = _make_shape(settings, contacts, job, address, names)
        group = ConnectedGroup(shape, loop, transport, recorder=recorder)
        transport.admit(token, job, contacts[0].checksum)
        loop.post(transport.start, group.receiver)
        loop.post(group.start)
        for peer in range(rank):
            is_local = contacts[peer].mark == contact.mark
            _dial(group, transport, peer, contacts[peer], deadline=deadline, is_local=is_local)
        _wait_for_links(group, deadline, settings.start_timeout_s)
    except BaseException as error:
        if group is None:
            recorder.give_back()
            loop.post(transport.close)
        else:
            is_known = group.error is not None  # then the connected peers know of it
            group.close("" if is_known else f"it could not join: {type(error).__name__}: {error}")
        raise
    return group


def _make_shape(
    settings: Settings, contacts: Sequence[WorkerContact], job: int, address: str, names: Sequence[int]
) -> Shape:
    """Return the shape of the group.  Options that must be the same on all ranks are taken from rank 0."""
    first = contacts[0]
    return Shape(
        rank=settings.rank,
        hosts=[contact.host for contact in contacts],
        job=job,
        sizes=first.sizes,
        credit_bytes=first.credit_bytes,
        silence_timeout_s=settings.silence_timeout_s,
        stall_timeout_s=settings.stall_timeout_s,
        wait_free=settings.wait_free,
        plan=settings.plan,
        profile=settings.profile,
        priority=settings.priority,
        identity=hashlib.sha256(first.token.encode()).hexdigest()[:12],
        sharing=settings.sharing,
        address=address,
        names=tuple(names),
    )


def _read_contact(data: bytes) -> WorkerContact:
    contact = _contacts.decode(data)
    try:
        parse_address(contact.address)
    except ConfigError as error:
        raise Garbled(f"the contact of another worker cannot be read: {error}") from None
    return contact


def _own_contact(transport: SocketTransport, settings: Settings) -> WorkerContact:
    return WorkerContact(
        transport.address,
        "" if settings.address else transport.local_address,  # an interface chosen by the user must be used
        same_host_mark(),
        socket.gethostname(),
        secrets.token_hex(16),
        settings.sizes,
        settings.credit_bytes,
        settings.checksum,
    )


def _dial(
    group: ConnectedGroup,
    transport: SocketTransport,
    peer: int,
    contact: WorkerContact,
    *,
    deadline: float,
    is_local: bool,
) -> None:
    addresses = [contact.local_address, contact.address] if is_local and contact.local_address else [contact.address]
    give_up_s = min(deadline, time.monotonic() + DIAL_TIMEOUT_S)
    for address in itertools.cycle(addresses):
        try:
            transport.dial(peer, address, max(0.1, deadline - time.monotonic()))
            return
        except (OSError, Refused) as error:
            group.check()  # the peer may have left because of a loss that this rank has learned of
            # Tried again, because strangers may fill the peer's backlog for a moment.
            if time.monotonic() > give_up_s:
                raise PeerLost(
                    f"{error}. Is a firewall between the hosts? UNDERTOW_ADDRESS chooses another interface",
                    rank=group.shape.name(peer),
                    host=contact.host,
                    event=f"was met but cannot be reached at {address}",
                ) from None
            time.sleep(DIAL_PAUSE_S)


def _wait_for_links(group: ConnectedGroup, deadline: float, timeout_s: float) -> None:
    if not group.waiters.wait_within(group.receiver.all_connected, max(0.1, deadline - time.monotonic())):
        event = f"did not connect within {timeout_s:g} s of the start"
        absent = [group.shape.name(peer) for peer in group.receiver.never_connected]
        raise PeerLost(ranks=absent, event=event)
