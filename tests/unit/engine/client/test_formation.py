"""Dialling a peer whose listener is full or that cannot be reached; waiting until all peers are connected."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from undertow.engine.client import formation
from undertow.engine.client.formation import WorkerContact
from undertow.engine.client.group import ConnectedGroup
from undertow.engine.coordinator import messages
from undertow.engine.core.frames import Header, Kind
from undertow.engine.core.shape import Shape
from undertow.errors import PeerLost, Refused
from undertow.settings import Checksum
from undertow.sizing import Sizes

SHAPE = Shape(
    rank=0,
    hosts=["alpha", "beta", "gamma"],
    job=7,
    sizes=Sizes(fixed=64),
    credit_bytes=256,
    silence_timeout_s=10.0,
    stall_timeout_s=60.0,
)
SUBSET = replace(SHAPE, names=(1, 3, 4))  # of a larger job

CONTACT = WorkerContact("10.0.0.1:4000", "unix:undertow-x", "mark", "alpha", "token", 1024, 4096, Checksum.AUTO)


class Listener:
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


def dial(listener: Listener, *, is_local: bool, check: Callable[[], None] = lambda: None) -> None:
    group: Any = SimpleNamespace(shape=SUBSET, check=check)
    formation._dial(group, listener, 1, CONTACT, deadline=160.0, is_local=is_local)  # type: ignore[arg-type]


def test_a_crowded_listener_is_tried_again_the_other_way_round() -> None:
    listener = Listener(BlockingIOError(11, "busy"), Refused("it was thrown out"), BrokenPipeError())
    dial(listener, is_local=True)
    assert listener.dialled == ["unix:undertow-x", "10.0.0.1:4000"] * 2


def test_a_peer_on_another_host_is_dialled_over_tcp_only() -> None:
    listener = Listener(ConnectionResetError())
    dial(listener, is_local=False)
    assert listener.dialled == ["10.0.0.1:4000"] * 2


def test_a_peer_that_cannot_be_reached_is_given_up_and_named() -> None:
    listener = Listener(*[ConnectionRefusedError(111, "Connection refused")] * 1000)
    with pytest.raises(PeerLost, match=r"rank 3 on host alpha was met but cannot be reached at 10\.0\.0\.1:4000"):
        dial(listener, is_local=False)
    assert formation.DIAL_TIMEOUT_S < time.monotonic() - 100.0 < formation.DIAL_TIMEOUT_S + 1.0


def test_who_cannot_be_reached_because_another_was_lost_is_not_blamed() -> None:
    listener = Listener(*[ConnectionRefusedError(111, "Connection refused")] * 1000)

    def check() -> None:
        if len(listener.dialled) == 3:
            raise PeerLost("rank 0 was lost")

    with pytest.raises(PeerLost, match="rank 0 was lost"):
        dial(listener, is_local=False, check=check)


class Wire:
    """A transport that tells nobody, and is connected to nobody."""

    bytes_sent = 0
    is_draining = False

    def send(self, peer: int, header: bytes, body: Any = None) -> None: ...

    def is_connected(self, peer: int) -> bool:
        return False

    def checks_bodies(self, peer: int) -> bool:
        return False

    def close(self) -> None: ...

    def abandon(self) -> None: ...


@pytest.fixture
def group() -> ConnectedGroup:
    return ConnectedGroup(SHAPE, None, Wire())  # type: ignore[arg-type]


def wait_for_links(group: ConnectedGroup) -> None:
    formation._wait_for_links(group, 100.0, 30.0)


def say_goodbye(group: ConnectedGroup, peer: int) -> None:
    body = messages.encode(messages.Goodbye(""))
    group.receiver.arrived(peer, Header(Kind.CONTROL, rank=peer, length=len(body), job=7), body)
    group.receiver.lost(peer, "its connection closed")


def test_a_worker_that_has_left_before_the_last_came_is_not_waited_for(group: ConnectedGroup) -> None:
    group.receiver.connected(2)
    say_goodbye(group, 2)
    group.receiver.connected(1)
    wait_for_links(group)


def test_a_worker_that_is_lost_while_others_are_awaited_is_named_at_once(group: ConnectedGroup) -> None:
    group.receiver.connected(2)
    group.receiver.lost(2, "its connection broke")
    with pytest.raises(PeerLost, match="rank 2 on host gamma was lost: its connection broke"):
        wait_for_links(group)


def test_workers_that_never_come_are_named(group: ConnectedGroup) -> None:
    with pytest.raises(PeerLost, match="ranks 1 and 2 did not connect within 30 s"):
        wait_for_links(group)
    group.receiver.connected(1)
    with pytest.raises(PeerLost, match="rank 2 did not connect"):
        wait_for_links(group)


def test_workers_of_a_part_of_the_job_are_named_by_their_ranks_in_the_job() -> None:
    with pytest.raises(PeerLost, match="ranks 3 and 4 did not connect within 30 s"):
        wait_for_links(ConnectedGroup(SUBSET, None, Wire()))  # type: ignore[arg-type]
