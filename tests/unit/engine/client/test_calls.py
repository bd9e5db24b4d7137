"""One rank's side of named calls: its requests, its contributions and the end of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.fake_group import make_shape
from undertow.engine.client.calls import Answer, NamedCall, NamedCallClient, RunningOut
from undertow.engine.coordinator import messages
from undertow.engine.coordinator.agreement import Keys
from undertow.engine.coordinator.calls import NamedCallCoordinator
from undertow.engine.coordinator.messages import AllOut, Begin, Decline, Drop, Message, Prepare, Prepared, RanOut
from undertow.engine.coordinator.terms import Disagreement, Route, Terms
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import Unexpected
from undertow.engine.core.slicing import Cut, Slice
from undertow.engine.server.gathering import RankBytes

GATHER = Terms("allgather", Route.EVERYONE, allows_absent=True)


class Exchange:
    """Only writes down what it is told."""

    def __init__(self) -> None:
        self.worker = self
        self.learned: list[int] = []
        self.contributed: list[Contribution] = []
        self.released: list[RankBytes] = []

    def note_names(self, name: str, slices: Sequence[Slice]) -> None: ...

    def learn(self, slices: Sequence[Slice]) -> None:
        self.learned += [item.spec.key for item in slices]

    def contribute(self, contributions: Sequence[Contribution]) -> None:
        self.contributed += contributions

    def release(self, pieces: Sequence[RankBytes]) -> None:
        self.released += pieces


class Rank:
    """One of two ranks."""

    def __init__(self, rank: int) -> None:
        self.exchange: Any = Exchange()
        self.sent: list[Message] = []
        self.discarded: list[range] = []
        self.client = NamedCallClient(
            make_shape(2, rank=rank),
            self.exchange,
            send=lambda peer, message: self.sent.append(message),
            send_all=self.sent.append,
            coordinator=None if rank else NamedCallCoordinator(make_shape(2), Keys()),
            discard=self.discarded.append,
        )

    def call(self, name: str = "x", terms: Terms = GATHER) -> NamedCall:
        made = NamedCall(name, terms, contribute)
        self.client.make(made)
        return made

    def answer_all(self, pieces: Sequence[RankBytes] = ()) -> None:
        waiting, self.exchange.contributed = self.exchange.contributed, []
        for contribution in waiting:
            contribution.gathered = pieces
            contribution.on_result(contribution)


def contribute(slices: Sequence[Slice], answer: Answer) -> list[Contribution]:
    return [Contribution(item.spec.key, None, None, 1, answer) for item in slices]


def test_a_call_is_requested_learned_contributed_to_and_ended() -> None:
    rank = Rank(1)
    made = rank.call()
    assert rank.sent == [messages.Call("x", GATHER)]
    rank.client.handle_message(0, Prepare(0, Cut(5, 1040), GATHER))
    assert rank.exchange.learned == [5]
    assert rank.sent[1:] == [Prepared(0)]
    assert rank.exchange.contributed == []
    rank.client.handle_message(0, Begin("x", 0))
    assert [(item.key, item.present) for item in rank.exchange.contributed] == [(5, 1)]
    assert not made.done.is_set()
    rank.answer_all()
    assert made.done.is_set()
    assert made.mismatch is None


def test_a_refused_call_ends_with_the_reason() -> None:
    rank = Rank(1)
    made, other = rank.call(), rank.call("y")
    rank.client.handle_message(0, Decline("x", Disagreement("ranks differ")))
    assert made.done.is_set()
    assert made.mismatch == Disagreement("ranks differ")
    assert not other.done.is_set()
    rank.client.handle_message(0, Decline("z", Disagreement("of a call that this rank has not made")))


def test_nothing_travels_for_a_barrier() -> None:
    rank = Rank(0)
    made = rank.call("b", Terms("barrier", Route.NOWHERE))
    rank.client.handle_message(1, messages.Call("b", Terms("barrier", Route.NOWHERE)))
    rank.client.handle_message(1, Prepared(0))
    assert made.done.is_set()
    assert [type(message) for message in rank.sent] == [Prepare, Begin]


def test_a_rank_without_input_takes_part_with_nothing() -> None:
    rank = Rank(1)
    waiting = RunningOut()
    rank.client.run_out(waiting)
    assert rank.sent == [RanOut()]
    rank.client.handle_message(0, Prepare(0, Cut(5, 1040), GATHER))
    rank.client.handle_message(0, Begin("x", 0))
    assert [(item.key, item.source, item.present) for item in rank.exchange.contributed] == [(5, None, 0)]
    theirs, own = RankBytes(None, 1), RankBytes(None, 0)
    rank.answer_all([theirs, own])
    assert rank.exchange.released == [theirs]
    rank.client.handle_message(0, AllOut(0))
    assert waiting.done.is_set()
    assert waiting.last == 0


def test_keys_are_free_again_when_the_call_is_over_here() -> None:
    rank = Rank(0)
    for name in ("x", "y"):
        made = rank.call(name)
        rank.client.handle_message(1, messages.Call(name, GATHER))
        rank.client.handle_message(1, Prepared(0))
        rank.answer_all()
        assert made.done.is_set()
    assert [type(message) for message in rank.sent] == [Prepare, Begin, Begin]


def test_what_makes_no_sense_is_refused() -> None:
    first, second = Rank(0), Rank(1)
    first.client.handle_message(1, messages.Call("x", GATHER))
    with pytest.raises(Unexpected, match="makes the call 'x' twice"):
        first.client.handle_message(1, messages.Call("x", GATHER))
    with pytest.raises(Unexpected, match="mistakes another rank for the coordinator"):
        first.client.handle_message(1, Begin("x", 0))
    with pytest.raises(Unexpected, match="mistakes another rank for the coordinator"):
        second.client.handle_message(0, RanOut())
    with pytest.raises(Unexpected, match="keys that are not known here"):
        second.client.handle_message(0, Begin("x", 7))


def test_who_blocks_a_call_is_known() -> None:
    first, second = Rank(0), Rank(1)
    for rank, departed in ((first, 1), (second, 0)):
        assert rank.client.blocked_by([departed]) is None
        rank.call()
        assert rank.client.blocked_by([departed]) == departed
    assert first.client.describe_missing() == "'x' waits for rank 1"
    assert second.client.describe_missing() == "'x' waits for other ranks"


def test_a_dropped_set_is_discarded_once() -> None:
    rank = Rank(1)
    rank.call()
    rank.client.handle_message(0, Prepare(3, Cut(5, 1040), GATHER))
    for _ in range(2):
        rank.client.handle_message(0, Drop(3))
    assert rank.discarded == [range(5, 6)]
    assert not rank.client.keys
