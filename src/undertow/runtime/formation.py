"""How a group comes together: meet, listen, dial, until every pair is connected.

In: a way to meet (see `Meet`), this worker's settings.  Out: a connected `Group`.
Addresses and ports are the system's own choice; the interface is the one that
routes to the coordinator.
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

from undertow.coordinator.rendezvous import parse_address
from undertow.core.decoding import Count, Decoder
from undertow.errors import ConfigError, Garbled, PeerLost, Refused
from undertow.plan.sizing import Sizes
from undertow.runtime.group import Group
from undertow.runtime.shape import Shape
from undertow.settings import Checksum, Settings
from undertow.trace.recorder import here
from undertow.wire.loop import Loop
from undertow.wire.routes import route_to, same_host_mark
from undertow.wire.sockets import SocketTransport

__all__ = ["Card", "Meet", "form", "host_of", "route_to", "same_host_mark"]

DIAL_PATIENCE_S = 5.0
DIAL_PAUSE_S = 0.02

# Bring a payload, leave with everybody's in rank order.
Meet = Callable[[bytes], list[bytes]]


class Card(msgspec.Struct, frozen=True):
    """What a worker tells the others when they meet; rank 0's numbers, and its choice of checksums, are everyone's."""

    address: str
    local_address: str
    mark: str  # of the host, see `same_host_mark`
    host: str
    token: str
    sizes: Sizes
    credit_bytes: Count
    checksum: Checksum


_cards: Decoder[Card] = Decoder(Card, "what another worker says of itself")


def form(
    meet: Meet,
    *,
    name: str,
    rank: int,
    size: int,
    settings: Settings,
    loop: Loop,
    address: str,
    names: Sequence[int] = (),
) -> Group:
    """Meet the others and connect to them all.  Raises `PeerLost` if one does not come.

    `names` are the ranks in the whole job, if this group is a part of it.
    """
    deadline = time.monotonic() + settings.start_timeout_s
    recorder = here.lend()
    transport = SocketTransport(
        loop,
        rank=rank,
        size=size,
        host=address,
        silence_s=settings.silence_timeout_s,
        recorder=recorder,
    )
    group: Group | None = None
    try:
        card = _own_card(transport, settings)
        cards = [_read_card(data) for data in meet(msgspec.msgpack.encode(card))]
        token = (settings.token or cards[0].token).encode()
        job = zlib.crc32(name.encode(), zlib.crc32(token))
        shape = Shape(
            rank=rank,
            hosts=[card.host for card in cards],
            job=job,
            sizes=cards[0].sizes,
            credit_bytes=cards[0].credit_bytes,
            silence_timeout_s=settings.silence_timeout_s,
            stall_timeout_s=settings.stall_timeout_s,
            wait_free=settings.wait_free,
            plan=settings.plan,
            profile=settings.profile,
            priority=settings.priority,
            identity=hashlib.sha256(cards[0].token.encode()).hexdigest()[:12],
            sharing=settings.sharing,
            address=address,
            names=tuple(names),
        )
        group = Group(shape, loop, transport, recorder=recorder)
        transport.admit(token, job, cards[0].checksum)
        loop.post(transport.start, group)
        loop.post(group.start)
        for peer in range(rank):
            is_local = cards[peer].mark == card.mark
            _dial(transport, peer, cards[peer], deadline=deadline, is_local=is_local, check=group.waiters.check)
        _wait_for_links(group, deadline, settings.start_timeout_s)
    except BaseException as error:
        if group is None:
            recorder.give_back()
            loop.post(transport.close)
        else:
            is_known = group.waiters.error is not None  # then all who can hear of it have heard
            group.close("" if is_known else f"it could not join: {type(error).__name__}: {error}")
        raise
    return group


def _read_card(data: bytes) -> Card:
    card = _cards.decode(data)
    try:
        parse_address(card.address)
    except ConfigError as error:
        raise Garbled(f"what another worker says of itself cannot be read: {error}") from None
    return card


def _own_card(transport: SocketTransport, settings: Settings) -> Card:
    return Card(
        transport.address,
        "" if settings.address else transport.local_address,  # who names an interface gets it
        same_host_mark(),
        socket.gethostname(),
        secrets.token_hex(16),
        settings.sizes,
        settings.credit_bytes,
        settings.checksum,
    )


def _dial(
    transport: SocketTransport, peer: int, card: Card, *, deadline: float, is_local: bool, check: Callable[[], None]
) -> None:
    ways = [card.local_address, card.address] if is_local and card.local_address else [card.address]
    patience = min(deadline, time.monotonic() + DIAL_PATIENCE_S)
    for address in itertools.cycle(ways):
        try:
            transport.dial(peer, address, max(0.1, deadline - time.monotonic()))
            return
        except (OSError, Refused) as error:
            check()  # it may be gone because of somebody else, of whom we have heard
            # Strangers may crowd the door for a moment.
            if time.monotonic() > patience:
                raise PeerLost(
                    f"rank {peer} on host {card.host} was met but cannot be reached at {address}: {error}. "
                    "Is a firewall between the hosts? UNDERTOW_ADDRESS chooses another interface"
                ) from None
            time.sleep(DIAL_PAUSE_S)


def _wait_for_links(group: Group, deadline: float, timeout_s: float) -> None:
    if not group.waiters.wait_within(group.all_connected, max(0.1, deadline - time.monotonic())):
        absent = ", ".join(map(str, group.never_connected))
        raise PeerLost(f"rank {absent} did not connect within {timeout_s:g} s of the start")


def host_of(address: str) -> str:
    return parse_address(address)[0]
