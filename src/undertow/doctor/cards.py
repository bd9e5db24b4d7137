"""What hosts tell each other when they meet, and how they stay in step afterwards.

In: payloads of other hosts.  Out: structs; a `Circle` of the hosts that came.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from undertow.core.decoding import Decoder, Seconds
from undertow.doctor.findings import Finding
from undertow.errors import Garbled, MismatchError


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One host.  By field names, so that a version that knows more can still be read."""

    name: str
    door: str  # address and port; empty: it has none
    mark: str  # of the machine, see `same_host_mark`
    protocol: int
    versions: dict[str, str]
    mtu: int = 0
    speed_mbit: int = 0
    settings: dict[str, str] = {}  # those that must be the same everywhere, by variable
    findings: list[Finding] = []
    hosts: int = 0  # how many it was told of
    timeout_s: Seconds = 0.0  # how long the first host waits for the others


class Roster(msgspec.Struct, frozen=True):
    """What the first host answers with: who came, and the token for their doors."""

    token: str
    cards: list[Card | None]


@dataclass(frozen=True)
class Circle:
    """The hosts that came, each in a place; they exchange payloads in named meetings."""

    rank: int  # this host's place
    cards: list[Card]
    token: bytes  # of the doors
    exchange: Callable[[str, bytes, float], list[bytes]]  # meeting, payload, timeout in seconds


T = TypeVar("T")


def decode(payload: bytes, kind: type[T]) -> T:
    """Raises `MismatchError` at what another version may have meant."""
    try:
        return Decoder[T](kind).decode(payload)
    except Garbled as error:
        raise MismatchError(
            f"another host's doctor cannot be understood ({error}): install the same undertow"
        ) from None
