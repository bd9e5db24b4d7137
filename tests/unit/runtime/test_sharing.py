"""Turns of a process: one per device, with the terms of its job, and what workers of a job relay to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fake_group import FakeGroup
from undertow.crossover.messages import VERSION, DeviceTime, Hello, Lift
from undertow.runtime import sharing
from undertow.runtime.sharing import close_all, find_turn, open_turn
from undertow.settings import Sharing

LIFT, COUNT = Lift(0.5), DeviceTime(step=1, virtual_s=3.0, cost_s=2.0)


class FakeTurn:
    """A turn client that keeps what happens to it."""

    def __init__(
        self, hello: Hello, path: object, *, relay: Callable[[Any], None], synchronise: object, is_verbose: bool
    ) -> None:
        self.hello, self.relay, self.is_verbose = hello, relay, is_verbose
        self.story: list[object] = []

    def start(self) -> None:
        self.story.append("start")

    def close(self) -> None:
        self.story.append("close")

    def abandon(self) -> None:
        self.story.append("abandon")

    def handle_relayed(self, message: object) -> None:
        self.story.append(message)


class FakeChannel:
    def __init__(self) -> None:
        self.sent: list[object] = []
        self.freed: list[object] = []
        self.handlers: list[Callable[[int, Any], None]] = []

    def on_message(self, handler: Callable[[int, Any], None]) -> None:
        self.handlers.append(handler)

    def send(self, message: object) -> None:
        self.sent.append(message)

    def free_while_waiting(self, turn: object) -> None:
        self.freed.append(turn)


class SharingGroup(FakeGroup):
    """A group of two whose job shares its devices."""

    def __init__(self, rank: int = 0) -> None:
        super().__init__()
        self.rank = rank
        self.channel = FakeChannel()
        terms = Sharing(name="vision", weight=2.0, is_urgent=True, socket="/tmp/s", is_verbose=rank == 0)
        self.configure(sharing=terms, identity="vision-7")

    @property
    def turns(self) -> Any:
        return self.channel


@pytest.fixture(autouse=True)
def _fake_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "TurnClient", FakeTurn)
    monkeypatch.setattr(sharing, "_turns", {})


def open_on(group: FakeGroup, device: str = "cuda:0") -> Any:
    return open_turn(group, device, growth_bytes=3, free_bytes=5, synchronise=lambda: None)


def test_a_job_that_does_not_share_takes_no_turns() -> None:
    assert open_on(FakeGroup()) is None
    assert find_turn("cuda:0") is None


def test_a_turn_has_the_terms_of_its_job_and_is_started() -> None:
    turn = open_on(SharingGroup(rank=1))
    hello = turn.hello
    assert (hello.version, hello.job, hello.name, hello.rank, hello.world_size) == (VERSION, "vision-7", "vision", 1, 2)
    assert (hello.device, hello.weight, hello.is_urgent) == ("cuda:0", 2.0, True)
    assert (hello.growth_bytes, hello.free_bytes) == (3, 5)
    assert not turn.is_verbose
    assert turn.story == ["start"]


def test_models_on_one_device_share_its_turn_and_every_group_frees_it_while_it_waits() -> None:
    group, other = SharingGroup(), SharingGroup()
    turn = open_on(group)
    assert open_on(other) is turn
    assert turn.story == ["start"]
    assert len(group.channel.handlers) + len(other.channel.handlers) == 1
    assert group.channel.freed == other.channel.freed == [turn]
    assert open_on(group, "cuda:1") is not turn


def test_a_turn_that_was_not_admitted_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(turn: FakeTurn) -> None:
        raise ConnectionError("no room")

    monkeypatch.setattr(FakeTurn, "start", refuse)
    with pytest.raises(ConnectionError):
        open_on(SharingGroup())
    assert find_turn("cuda:0") is None


def test_the_first_worker_handles_lifts_and_passes_counts_on() -> None:
    group = SharingGroup()
    turn = open_on(group)
    turn.relay(LIFT)
    turn.relay(COUNT)
    assert turn.story == ["start", LIFT]
    assert group.channel.sent == [COUNT]


def test_all_other_workers_pass_everything_on() -> None:
    group = SharingGroup(rank=1)
    turn = open_on(group)
    turn.relay(LIFT)
    turn.relay(COUNT)
    assert turn.story == ["start"]
    assert group.channel.sent == [LIFT, COUNT]


def test_counts_are_accepted_only_from_the_first_worker_and_lifts_only_by_it() -> None:
    first, second = SharingGroup(rank=0), SharingGroup(rank=1)
    heard = {}
    for group in (first, second):
        sharing._turns.clear()
        turn = open_on(group)
        [handle] = group.channel.handlers
        for peer in (0, 1):
            handle(peer, LIFT)
            handle(peer, COUNT)
        heard[group.rank] = turn.story[1:]
    assert heard[0] == [LIFT, COUNT, LIFT]
    assert heard[1] == [COUNT]


@pytest.mark.parametrize(("end", "word"), [(close_all, "close"), (sharing.abandon_all, "abandon")])
def test_at_the_end_and_in_a_forked_child_no_turn_is_left(end: Callable[[], None], word: str) -> None:
    turn = open_on(SharingGroup())
    end()
    assert turn.story == ["start", word]
    assert find_turn("cuda:0") is None
    end()
    assert turn.story == ["start", word]
