"""Rendezvous of the hosts of `undertow doctor --hosts`, at the first of them, and the data that hosts exchange.

In: this host's card, payloads of other hosts.  Out: the group of the hosts that took part, and findings about those
that did not.
A rendezvous of all hosts would fail if one were absent.  So every other host has two rendezvous with the first host
alone: in the first it sends its card, in the second it receives the list of the hosts that took part.  Links are
measured among those.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from undertow.decoding import Decoder, Seconds
from undertow.engine.coordinator.rendezvous import RendezvousServer, attend
from undertow.engine.wire.listeners import format_address
from undertow.errors import Garbled, MismatchError, PeerLost, Refused, UndertowError
from undertow.tools.doctor.findings import Finding, fail
from undertow.tools.doctor.link_measurement import explain_absence, try_host

# The first host answers when its timeout is over; the others wait this much longer.
SLACK_S = 10.0
_SAME_COMMAND = "start the same command on all hosts, with the same version of undertow"
T = TypeVar("T")
_CARD_NAME, _LIST_NAME = "doctor: card of host {}", "doctor: list for host {}"
_SAME_TOKEN = "set the same UNDERTOW_TOKEN on every host, or on none, and install the same undertow"


@dataclass(frozen=True, kw_only=True)
class DoctorRendezvous:
    """Address of the rendezvous, the names of all hosts, and which of them this is."""

    names: Sequence[str]
    rank: int
    address: str  # of the first host
    port: int
    guard: bytes  # UNDERTOW_TOKEN; empty: any process on the network could join
    timeout_s: float
    is_local: bool = False  # all hosts are on this machine's loopback, as in a trial

    def attend(self, name: str, payload: bytes, *, rank: int, size: int = 2, timeout_s: float) -> list[bytes]:
        address = format_address(self.address, self.port)
        return attend(address, self.guard, name=name, rank=rank, size=size, payload=payload, timeout_s=timeout_s)


def lead_rendezvous(
    rendezvous: DoctorRendezvous, card: HostCard, say: Callable[[str], None]
) -> tuple[HostGroup, list[Finding]]:
    """Wait for the other hosts, then send each the list of those that came.  Called on the first host."""
    cards: list[HostCard | None] = [card, *[None for _ in rendezvous.names[1:]]]
    errors: dict[int, Exception] = {}
    payload = msgspec.msgpack.encode(card)

    def receive(rank: int) -> HostCard:
        received = rendezvous.attend(_CARD_NAME.format(rank), payload, rank=0, timeout_s=rendezvous.timeout_s)
        return _read_card(received[1], rendezvous, sender=rank)

    awaited = dict(enumerate(rendezvous.names[1:], start=1))
    say(_describe_wait(awaited.values()))
    for rank, call in run_all(receive, list(awaited)):
        try:
            cards[rank] = call.result()
        except UndertowError as error:
            errors[rank] = error
        del awaited[rank]
        say(_describe_wait(awaited.values()))
    # A fresh token, even if UNDERTOW_TOKEN is set, because that secret must never cross the wire.
    host_list = HostList(secrets.token_hex(16), cards)
    _send_host_list(rendezvous, host_list)
    return _make_group(rendezvous, host_list), _explain(rendezvous, errors)


def _read_card(payload: bytes, rendezvous: DoctorRendezvous, *, sender: int) -> HostCard:
    card = decode(payload, HostCard, sender=sender)
    if card.hosts != len(rendezvous.names):
        text = f"{card.name} was given {card.hosts} hosts, this one {len(rendezvous.names)}"
        raise MismatchError(text, matter="--hosts", ranks=(rendezvous.rank, sender))
    return card


def _read_host_list(payload: bytes, rendezvous: DoctorRendezvous) -> HostList:
    host_list = decode(payload, HostList, sender=0)
    if len(host_list.cards) != len(rendezvous.names) or host_list.cards[rendezvous.rank] is None:
        text = f"the first host's list has {len(host_list.cards)} hosts, or lacks this host's card"
        raise MismatchError(text, matter="--hosts", ranks=(rendezvous.rank, 0))
    return host_list


def _describe_wait(names: Iterable[str]) -> str:
    return f"waiting for {', '.join(names)}: start the same command there" if names else "all hosts came"


def _send_host_list(rendezvous: DoctorRendezvous, host_list: HostList) -> None:
    payload = msgspec.msgpack.encode(host_list)
    present = [rank for rank, card in enumerate(host_list.cards) if card and rank]

    def send(rank: int) -> None:
        rendezvous.attend(_LIST_NAME.format(rank), payload, rank=0, timeout_s=SLACK_S)

    # The next rendezvous reports a host that has left in the meantime.
    list(run_all(send, present))


def join_rendezvous(
    rendezvous: DoctorRendezvous, card: HostCard, say: Callable[[str], None]
) -> tuple[HostGroup | None, list[Finding]]:
    """Send this host's card, and receive those of the hosts that came.  Called on all hosts but the first."""
    first, rank = rendezvous.names[0], rendezvous.rank
    payload = msgspec.msgpack.encode(card)

    def send_card() -> HostCard:
        received = rendezvous.attend(_CARD_NAME.format(rank), payload, rank=1, timeout_s=rendezvous.timeout_s)
        return _read_card(received[0], rendezvous, sender=0)

    def receive(timeout_s: float) -> HostList:
        received = rendezvous.attend(_LIST_NAME.format(rank), b"", rank=1, timeout_s=timeout_s)
        return _read_host_list(received[0], rendezvous)

    try:
        say(_describe_wait([first]))
        host = run_one(send_card)
    except Refused as error:
        return None, [fail("hosts", f"{first} refuses this host: {error.reason}", _SAME_TOKEN)]
    except MismatchError as error:
        return None, [fail("hosts", str(error), _SAME_COMMAND)]
    except PeerLost:
        return None, [_explain_one(rendezvous, 0)]
    say(f"{first} waits for other hosts")
    try:
        host_list = run_one(lambda: receive(host.timeout_s + SLACK_S))
    except UndertowError as error:
        text = f"{first} received this host's card, but did not report which other hosts came: {error}"
        return None, [fail("hosts", text, f"see what {first} prints, and start the doctor again on all hosts")]
    absent = [name for name, card in zip(rendezvous.names, host_list.cards, strict=False) if card is None]
    findings = [fail("hosts", f"{name} did not come", f"see what {first} and {name} print") for name in absent]
    return _make_group(rendezvous, host_list), findings


def _make_group(rendezvous: DoctorRendezvous, host_list: HostList) -> HostGroup:
    ranks = [rank for rank, card in enumerate(host_list.cards) if card]
    own, size = ranks.index(rendezvous.rank), len(ranks)

    def exchange(name: str, payload: bytes, timeout_s: float) -> list[bytes]:
        return rendezvous.attend(name, payload, rank=own, size=size, timeout_s=timeout_s)

    return HostGroup(own, [card for card in host_list.cards if card], host_list.token.encode(), exchange)


def _explain(rendezvous: DoctorRendezvous, errors: dict[int, Exception]) -> list[Finding]:
    lost = [rank for rank, error in sorted(errors.items()) if isinstance(error, PeerLost)]
    found = [call.result() for _, call in run_all(lambda rank: _explain_one(rendezvous, rank), lost)]
    others = [rank for rank in errors if rank not in lost]
    return found + [fail("hosts", f"{rendezvous.names[rank]}: {errors[rank]}", _SAME_COMMAND) for rank in others]


def _explain_one(rendezvous: DoctorRendezvous, rank: int) -> Finding:
    """Explain why a host did not come, by trying to connect to it."""
    name = rendezvous.names[rank]
    reach = try_host(rendezvous.address if rank == 0 else name, rendezvous.port)
    text, cure = explain_absence(reach, name, rendezvous.port)
    return fail("hosts", f"{name} did not come within {rendezvous.timeout_s:g} s: {text}", cure)


def open_rendezvous(rendezvous: DoctorRendezvous) -> closing[RendezvousServer]:
    server = RendezvousServer(rendezvous.address, rendezvous.port, rendezvous.guard)
    server.start()
    return closing(server)


class HostCard(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one host that the others need.  Encoded with field names, so that new versions may add fields."""

    name: str
    probe_address: str = msgspec.field(name="door")  # address and port, by its name in JSON; empty: no probe server
    mark: str  # identifies the machine, see `same_host_mark`
    protocol: int
    versions: dict[str, str]
    mtu: int = 0
    speed_mbit: int = 0
    settings: dict[str, str] = {}  # those that must be the same everywhere, by variable
    findings: list[Finding] = []
    hosts: int = 0  # number of hosts in its --hosts
    timeout_s: Seconds = 0.0  # how long the first host waits for the others


class HostList(msgspec.Struct, frozen=True):
    """Answer of the first host: the cards of the hosts that came, and the token of their probe servers."""

    token: str
    cards: list[HostCard | None]


@dataclass(frozen=True)
class HostGroup:
    """Hosts that took part, numbered from 0; they exchange payloads in named rendezvous."""

    rank: int  # this host's number
    cards: list[HostCard]
    token: bytes  # of the probe servers
    exchange: Callable[[str, bytes, float], list[bytes]]  # name, payload, timeout in seconds


def decode(payload: bytes, kind: type[T], *, sender: int) -> T:
    """Decode a payload of host `sender`; raise `MismatchError` if it is invalid, for example from another version."""
    try:
        return Decoder[T](kind).decode(payload)
    except Garbled as error:
        raise MismatchError(
            f"a message of another host's doctor cannot be decoded ({error}): install the same undertow on all hosts",
            matter="the version of undertow",
            ranks=[sender],
        ) from None


def run_all(work: Callable[[int], T], numbers: Iterable[int]) -> Iterator[tuple[int, Future[T]]]:
    """Call `work` with all numbers concurrently, each in a thread; yield each number and its result as its call ends.

    This way Ctrl-C can interrupt the wait.  The threads are then abandoned, so `work` must have a deadline of its own.
    """
    calls: dict[Future[T], int] = {Future(): number for number in numbers}
    for call, number in calls.items():
        # Not from a pool, whose threads would have to end before the process can.
        threading.Thread(target=_run, args=[call, work, number], daemon=True).start()
    for call in as_completed(calls):
        yield calls[call], call


def _run(call: Future[T], work: Callable[[int], T], number: int) -> None:
    try:
        call.set_result(work(number))
    except Exception as error:  # raised again by `result`, in the caller's thread
        call.set_exception(error)


def run_one(work: Callable[[], T]) -> T:
    ((_, call),) = run_all(lambda number: work(), [0])
    return call.result()
