"""Dialling a peer whose door is crowded, and one that cannot be reached."""

from __future__ import annotations

import time

import pytest

from undertow.errors import PeerLost, Refused
from undertow.runtime import formation
from undertow.runtime.formation import Card

CARD = Card("10.0.0.1:4000", "unix:undertow-x", "mark", "alpha", "token", 1024, 4096)


class Door:
    """A transport that fails as often as told, and notes where it was sent."""

    def __init__(self, *failures: Exception) -> None:
        self.dialled: list[str] = []
        self._failures = list(failures)

    def dial(self, peer: int, address: str, timeout_s: float) -> None:
        self.dialled.append(address)
        if self._failures:
            raise self._failures.pop(0)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda pause_s: now.__setitem__(0, now[0] + pause_s))


def dial(door: Door, *, is_local: bool) -> None:
    formation._dial(door, 3, CARD, deadline=160.0, is_local=is_local)  # type: ignore[arg-type]


def test_a_crowded_door_is_tried_again_the_other_way_round() -> None:
    door = Door(BlockingIOError(11, "busy"), Refused("it was thrown out"), BrokenPipeError())
    dial(door, is_local=True)
    assert door.dialled == ["unix:undertow-x", "10.0.0.1:4000"] * 2


def test_a_peer_on_another_host_is_dialled_over_tcp_only() -> None:
    door = Door(ConnectionResetError())
    dial(door, is_local=False)
    assert door.dialled == ["10.0.0.1:4000"] * 2


def test_a_peer_that_cannot_be_reached_is_given_up_and_named() -> None:
    door = Door(*[ConnectionRefusedError(111, "Connection refused")] * 1000)
    with pytest.raises(PeerLost, match=r"rank 3 on host alpha was met but cannot be reached at 10\.0\.0\.1:4000"):
        dial(door, is_local=False)
    assert formation.DIAL_PATIENCE_S < time.monotonic() - 100.0 < formation.DIAL_PATIENCE_S + 1.0
