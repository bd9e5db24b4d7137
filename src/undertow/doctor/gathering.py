"""The hosts of `undertow doctor --hosts` meet at the first of them, as far as they come.

In: this host's card.  Out: the circle of those who came, and findings about those who did not.
A meeting of all would fail if one is absent.  So every other host has a meeting of two with the first one, to hand
over its card, and a second one to hear who else came; what can be measured is measured among those.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import msgspec

from undertow.coordinator.meeting_point import format_address
from undertow.coordinator.rendezvous import MeetingPoint, attend
from undertow.doctor.cards import Card, Circle, Roster, decode
from undertow.doctor.findings import Finding, fail
from undertow.doctor.patience import run_all, run_one
from undertow.doctor.reach import explain_absence, try_host
from undertow.errors import MismatchError, PeerLost, Refused, UndertowError

# The first host's answer comes when its own time is over; it needs a moment on top.
SLACK_S = 10.0
_SAME_COMMAND = "type the same command on all hosts, with the same undertow"
_SAME_TOKEN = "set the same UNDERTOW_TOKEN on every host, or on none, and install the same undertow"


@dataclass(frozen=True, kw_only=True)
class Appointment:
    """Where and with whom."""

    names: Sequence[str]
    rank: int
    address: str  # of the first host
    port: int
    guard: bytes  # UNDERTOW_TOKEN; empty: anyone on the network could come
    timeout_s: float
    is_local: bool = False  # all are on this machine's loopback, as in a trial

    @property
    def place(self) -> str:
        return format_address(self.address, self.port)

    def attend(self, meeting: str, *, rank: int, payload: bytes, timeout_s: float) -> list[bytes]:
        return attend(self.place, self.guard, meeting=meeting, rank=rank, size=2, payload=payload, timeout_s=timeout_s)


def gather(appointment: Appointment, card: Card, say: Callable[[str], None]) -> tuple[Circle, list[Finding]]:
    """On the first host: wait for the others, then tell each who came."""
    cards: list[Card | None] = [card, *[None for _ in appointment.names[1:]]]
    errors: dict[int, Exception] = {}
    payload = msgspec.msgpack.encode(card)

    def hear(rank: int) -> Card:
        heard = appointment.attend(
            f"doctor: card of host {rank}", rank=0, payload=payload, timeout_s=appointment.timeout_s
        )
        return _read_card(heard[1], appointment)

    awaited = dict(enumerate(appointment.names[1:], start=1))
    say(_call(awaited.values()))
    for errand in run_all(hear, list(awaited)):
        try:
            cards[errand.number] = errand.result()
        except UndertowError as error:
            errors[errand.number] = error
        del awaited[errand.number]
        say(_call(awaited.values()))
    # A fresh token, also where there is a secret: that one never crosses the wire.
    roster = Roster(secrets.token_hex(16), cards)
    _hand_out(appointment, roster)
    return _form(appointment, roster), _explain(appointment, errors)


def _read_card(payload: bytes, appointment: Appointment) -> Card:
    card = decode(payload, Card)
    if card.hosts != len(appointment.names):
        raise MismatchError(f"{card.name} was told of {card.hosts} hosts, this one of {len(appointment.names)}")
    return card


def _read_roster(payload: bytes, appointment: Appointment) -> Roster:
    roster = decode(payload, Roster)
    if len(roster.cards) != len(appointment.names) or roster.cards[appointment.rank] is None:
        raise MismatchError(f"the list of hosts that came has {len(roster.cards)} places, or not this host's card")
    return roster


def _call(names: Iterable[str]) -> str:
    return f"waiting for {', '.join(names)}: type the same command there" if names else "all hosts came"


def _hand_out(appointment: Appointment, roster: Roster) -> None:
    payload = msgspec.msgpack.encode(roster)
    present = [rank for rank, card in enumerate(roster.cards) if card and rank]

    def tell(rank: int) -> None:
        appointment.attend(f"doctor: roster for host {rank}", rank=0, payload=payload, timeout_s=SLACK_S)

    # Who has left since then is missed at the next meeting, which says so.
    list(run_all(tell, present))


def join(appointment: Appointment, card: Card, say: Callable[[str], None]) -> tuple[Circle | None, list[Finding]]:
    """On any other host: hand over the card, and hear who came."""
    first, rank = appointment.names[0], appointment.rank
    payload = msgspec.msgpack.encode(card)

    def hand_over() -> Card:
        heard = appointment.attend(
            f"doctor: card of host {rank}", rank=1, payload=payload, timeout_s=appointment.timeout_s
        )
        return _read_card(heard[0], appointment)

    def hear(patience_s: float) -> Roster:
        heard = appointment.attend(f"doctor: roster for host {rank}", rank=1, payload=b"", timeout_s=patience_s)
        return _read_roster(heard[0], appointment)

    try:
        say(_call([first]))
        host = run_one(hand_over)
    except Refused as error:
        return None, [fail("hosts", f"{first} refuses this host: {error}", _SAME_TOKEN)]
    except MismatchError as error:
        return None, [fail("hosts", str(error), _SAME_COMMAND)]
    except PeerLost:
        return None, [_explain_one(appointment, 0)]
    say(f"{first} waits for other hosts")
    try:
        roster = run_one(lambda: hear(host.timeout_s + SLACK_S))
    except UndertowError as error:
        text = f"{first} took this host's card, but did not say who else came: {error}"
        return None, [fail("hosts", text, f"see what {first} says, and start the doctor again on all hosts")]
    absent = [name for name, card in zip(appointment.names, roster.cards, strict=False) if card is None]
    findings = [fail("hosts", f"{name} did not come", f"see what {first} and {name} say") for name in absent]
    return _form(appointment, roster), findings


def _form(appointment: Appointment, roster: Roster) -> Circle:
    ranks = [rank for rank, card in enumerate(roster.cards) if card]
    place, size = ranks.index(appointment.rank), len(ranks)

    def exchange(meeting: str, payload: bytes, timeout_s: float) -> list[bytes]:
        return attend(
            appointment.place,
            appointment.guard,
            meeting=meeting,
            rank=place,
            size=size,
            payload=payload,
            timeout_s=timeout_s,
        )

    return Circle(place, [card for card in roster.cards if card], roster.token.encode(), exchange)


def _explain(appointment: Appointment, errors: dict[int, Exception]) -> list[Finding]:
    lost = [rank for rank, error in sorted(errors.items()) if isinstance(error, PeerLost)]
    explained = run_all(lambda rank: _explain_one(appointment, rank), lost)
    found = [errand.result() for errand in explained]
    others = [rank for rank in errors if rank not in lost]
    return found + [fail("hosts", f"{appointment.names[rank]}: {errors[rank]}", _SAME_COMMAND) for rank in others]


def _explain_one(appointment: Appointment, rank: int) -> Finding:
    """What can be known from here of a host that did not come."""
    name = appointment.names[rank]
    reach = try_host(appointment.address if rank == 0 else name, appointment.port)
    text, cure = explain_absence(reach, name, appointment.port)
    return fail("hosts", f"{name} did not come within {appointment.timeout_s:g} s: {text}", cure)


def open_point(appointment: Appointment) -> closing[MeetingPoint]:
    point = MeetingPoint(appointment.address, appointment.port, appointment.guard)
    point.start()
    return closing(point)
