"""Group control: agreements through rank 0, one loss with its first cause, orderly leaving."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from tests.support.timers import Timers
from undertow.engine.client.control import GOODBYE_TIMEOUT_S, GroupControl, PendingAgreement
from undertow.engine.client.exchange import Exchange
from undertow.engine.client.waiting import Waiters
from undertow.engine.coordinator import messages
from undertow.engine.core import frames
from undertow.engine.core.dtypes import DType
from undertow.engine.core.flow import Contribution
from undertow.engine.core.frames import HEADER_BYTES, Header, Kind, Unexpected
from undertow.engine.core.membership import Loss
from undertow.engine.core.rounds import KeySpec, Op
from undertow.engine.core.shape import Shape
from undertow.engine.core.slicing import Slice, TensorRange
from undertow.errors import PeerLost
from undertow.sizing import Sizes

SILENCE_S = 10.0
STALL_S = 1800.0
ENDED = [(2, messages.Ended([])), (0, messages.Ended([]))]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Outgoing:
    """A transport that only writes down what is sent."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, messages.Message]] = []
        self.kinds: list[tuple[int, Kind]] = []
        self.connected = {0, 1, 2}
        self.bytes_sent = 0
        self.is_draining = False

    def send(self, peer: int, header: bytes, body: Any = None) -> None:
        kind = frames.unpack(header[:HEADER_BYTES]).kind
        self.kinds.append((peer, kind))
        if kind is Kind.CONTROL:
            self.messages.append((peer, messages.decode(body)))

    def is_connected(self, peer: int) -> bool:
        return peer in self.connected

    def checks_bodies(self, peer: int) -> bool:
        return True

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class Bench:
    """Group control of one of three ranks, with everything around it."""

    def __init__(self, rank: int, names: tuple[int, ...] = ()) -> None:
        self.clock = Clock()
        shape = Shape(
            rank=rank,
            hosts=["alpha", "beta", "gamma"],
            job=7,
            sizes=Sizes(fixed=1024),
            credit_bytes=4096,
            silence_timeout_s=SILENCE_S,
            stall_timeout_s=STALL_S,
            names=names,
        )
        self.out, self.timers = Outgoing(), Timers()
        self.exchange = Exchange(shape, self.out)
        self.exchange.learn([Slice(KeySpec(5, 4, DType.FLOAT32, Op.SUM, owner=2), (TensorRange(0, 0, 4, 0),))])
        self.waiters = Waiters(10.0, lambda waited_s: None)
        loop: Any = self.timers
        self.pending = PendingAgreement(1, "barrier")
        self.control = GroupControl(shape, loop, self.out, self.exchange, self.waiters, self.clock)

    def arrive(self) -> None:
        """This rank comes to a barrier."""
        self.control.arrive(self.pending, b"")

    def contribute(self) -> None:
        array = np.zeros(4, np.float32)
        self.exchange.worker.contribute([Contribution(5, array, array, 1, lambda done: None)])

    def answer(self) -> None:
        """The shard has the result."""
        header = Header(Kind.RESULT, 5, 1, rank=2, job=7)
        self.exchange.handle(2, header, None)

    @property
    def said_goodbye(self) -> bool:
        return (0, messages.Goodbye("")) in self.out.messages

    @property
    def error(self) -> str:
        return str(self.waiters.error or "")


@pytest.fixture
def bench() -> Bench:
    """Rank 1: neither the coordinator nor the owner of the key."""
    return Bench(1)


@pytest.fixture
def coordinator() -> Bench:
    return Bench(0)


BARRIER = messages.Arrive(1, "barrier", b"")


# Agreements


def test_a_rank_reports_its_arrival_to_the_coordinator(bench: Bench) -> None:
    bench.arrive()
    assert bench.out.messages == [(0, BARRIER)]
    assert not bench.pending.done.is_set()


def test_the_result_of_the_coordinator_ends_the_agreement(bench: Bench) -> None:
    bench.arrive()
    bench.control.handle_message(0, messages.AgreementResult(1, b"yes"))
    assert bench.pending.done.is_set()
    assert bench.pending.result == messages.AgreementResult(1, b"yes")


def test_the_second_arrival_of_a_rank_is_refused(coordinator: Bench) -> None:
    coordinator.control.handle_message(2, BARRIER)
    with pytest.raises(Unexpected, match="rank 2 arrives at agreement 1 twice"):
        coordinator.control.handle_message(2, BARRIER)


def test_the_coordinator_decides_when_all_are_there_itself_included(coordinator: Bench) -> None:
    coordinator.arrive()
    coordinator.control.handle_message(2, BARRIER)
    assert not coordinator.pending.done.is_set()
    coordinator.control.handle_message(1, BARRIER)
    assert coordinator.pending.done.is_set()
    assert coordinator.out.messages == [(1, messages.AgreementResult(1, b"")), (2, messages.AgreementResult(1, b""))]


@pytest.mark.parametrize("sequence", [0, 2])
def test_an_unexpected_result_is_refused(bench: Bench, sequence: int) -> None:
    bench.arrive()
    with pytest.raises(Unexpected, match=f"a result of agreement {sequence}, but this rank waits for 1"):
        bench.control.handle_message(0, messages.AgreementResult(sequence, b""))
    assert not bench.pending.done.is_set()


def test_only_rank_0_decides(bench: Bench) -> None:
    bench.arrive()
    for message in (messages.AgreementResult(1, b""), BARRIER):
        with pytest.raises(Unexpected, match="rank 2 mistakes another rank for the coordinator"):
            bench.control.handle_message(2, message)
    assert not bench.pending.done.is_set()


# Loss


def test_a_broken_link_is_reported_to_all_and_ends_all_waits(bench: Bench) -> None:
    bench.control.lose(2, "its connection closed (the process ended)")
    assert isinstance(bench.waiters.error, PeerLost)
    assert bench.error == (
        "rank 2 on host gamma was lost: its connection closed (the process ended); this is rank 1 at step 0"
    )
    lost = messages.Lost(Loss(2, 1, "its connection closed (the process ended)"))
    assert bench.out.messages == [(2, lost), (0, lost)]


def test_only_the_first_loss_counts(bench: Bench) -> None:
    bench.control.lose(2, "first")
    bench.control.lose(0, "second")
    bench.control.handle_message(0, messages.Lost(Loss(0, 0, "third")))
    assert "rank 2 on host gamma was lost: first" in bench.error
    assert len(bench.out.messages) == 2


def test_a_peer_that_connects_after_a_loss_gets_a_report_of_it(bench: Bench) -> None:
    bench.control.on_connected(0)
    assert bench.out.messages == []
    bench.control.lose(2, "its connection broke")
    bench.out.messages.clear()
    bench.control.on_connected(0)
    assert bench.out.messages == [(0, messages.Lost(Loss(2, 1, "its connection broke")))]


def test_a_loss_noticed_by_another_rank_names_that_rank(bench: Bench) -> None:
    bench.control.handle_message(0, messages.Lost(Loss(2, 0, silent_s=11.0)))
    assert "rank 2 on host gamma was lost: no sign of life for 11.0 s" in bench.error
    assert "link cut) (seen by rank 0); this is rank 1" in bench.error


@pytest.mark.parametrize("rank", [-1, 3, 99])
def test_the_loss_of_a_rank_that_does_not_exist_is_refused(bench: Bench, rank: int) -> None:
    with pytest.raises(Unexpected, match=f"a message says rank {rank} is lost, but there is no such rank"):
        bench.control.handle_message(0, messages.Lost(Loss(rank, 0, "so I say")))
    with pytest.raises(Unexpected, match=f"a message says rank {rank} has seen a loss, but there is no such rank"):
        bench.control.handle_message(0, messages.Lost(Loss(2, rank, "so I say")))
    assert bench.waiters.error is None


def test_ticks_send_heartbeats_and_find_silent_peers(bench: Bench) -> None:
    for _ in range(11):
        bench.clock.now += 1.0
        bench.control.note_alive(0)
        bench.control.tick(bench.clock.now)
    assert bench.out.kinds[:2] == [(2, Kind.HEARTBEAT), (0, Kind.HEARTBEAT)]
    assert "rank 2 on host gamma was lost: no sign of life for 11.0 s" in bench.error


# Departures


def test_a_goodbye_is_acknowledged_and_is_no_error(bench: Bench) -> None:
    bench.control.handle_message(2, messages.Goodbye())
    bench.out.connected.discard(2)
    bench.control.lose(2, "its connection closed")
    assert bench.out.messages == [(2, messages.Farewell())]
    assert bench.waiters.error is None


def test_a_departed_peer_whose_last_bytes_were_damaged_gets_a_goodbye(bench: Bench) -> None:
    """The end of the link would be a loss to it: it only waits for the farewells of others."""
    bench.control.handle_message(2, messages.Goodbye())
    bench.control.lose(2, "bytes from it were damaged on the way")
    assert bench.out.messages == [(2, messages.Farewell()), (2, messages.Goodbye())]
    assert bench.waiters.error is None


def test_leaving_waits_for_last_words_to_one_whose_bytes_were_damaged(bench: Bench) -> None:
    left: list[str] = []
    bench.out.is_draining = True
    bench.control.lose(2, "bytes from it were damaged on the way")
    bench.control.leave(messages.Goodbye("it failed"), lambda: left.append("gone"))
    bench.control.handle_message(0, messages.Farewell())
    bench.timers.fire()
    assert not left
    bench.out.is_draining = False
    bench.timers.fire()
    assert left == ["gone"]


def test_leaving_does_not_wait_for_ever_for_last_words(bench: Bench) -> None:
    left: list[str] = []
    bench.out.is_draining = True
    bench.control.lose(2, "bytes from it were damaged on the way")
    bench.control.leave(messages.Goodbye("it failed"), lambda: left.append("gone"))
    bench.clock.now += GOODBYE_TIMEOUT_S + 0.1
    bench.timers.fire()
    assert left == ["gone"]


def test_a_goodbye_because_of_an_error_is_a_loss_with_that_error(bench: Bench) -> None:
    bench.control.handle_message(2, messages.Goodbye("its script failed with ValueError: no"))
    assert "rank 2 on host gamma was lost: its script failed with ValueError: no" in bench.error


def test_to_wait_for_the_shard_of_a_departed_worker_is_an_error_at_once(bench: Bench) -> None:
    bench.contribute()
    bench.control.handle_message(2, messages.Goodbye())
    assert "rank 2 on host gamma was lost: its script has ended while others still train" in bench.error
    assert "step 1" in bench.error


def test_to_need_a_departed_worker_later_is_an_error_then(bench: Bench) -> None:
    bench.control.handle_message(2, messages.Goodbye())
    bench.contribute()
    bench.control.check_departed()
    assert "its script has ended" in bench.error


def test_a_departed_worker_that_nobody_needs_is_no_error(bench: Bench) -> None:
    bench.control.handle_message(0, messages.Goodbye())
    bench.contribute()
    bench.control.check_departed()
    assert bench.waiters.error is None


def test_an_agreement_without_the_coordinator_is_an_error(bench: Bench) -> None:
    bench.control.handle_message(0, messages.Goodbye())
    assert bench.waiters.error is None
    bench.arrive()
    assert "rank 0 on host alpha was lost: its script has ended" in bench.error


def test_an_agreement_that_waits_for_a_departed_worker_is_an_error(coordinator: Bench) -> None:
    coordinator.control.handle_message(2, messages.Goodbye())
    coordinator.control.handle_message(1, BARRIER)
    assert "rank 2 on host gamma was lost: its script has ended" in coordinator.error
    assert (
        1,
        messages.Lost(Loss(2, 0, "its script has ended while others still train (uneven inputs? see join())")),
    ) in (coordinator.out.messages)


# Leaving


def test_leaving_waits_until_all_have_acknowledged_the_goodbye(bench: Bench) -> None:
    left: list[str] = []
    bench.control.leave(messages.Goodbye(), lambda: left.append("gone"))
    assert bench.out.messages == [(2, messages.Goodbye("")), (0, messages.Goodbye(""))]
    bench.timers.fire()
    bench.control.handle_message(0, messages.Farewell())
    bench.timers.fire()
    assert not left
    bench.control.handle_message(2, messages.Farewell())
    bench.timers.fire()
    assert left == ["gone"]
    assert not bench.timers.due


def test_leaving_does_not_wait_for_the_dead_nor_for_those_who_left(bench: Bench) -> None:
    left: list[str] = []
    bench.control.handle_message(0, messages.Goodbye())
    bench.out.connected.discard(2)
    bench.control.leave(messages.Goodbye(), lambda: left.append("gone"))
    assert left == ["gone"]


def test_leaving_never_hangs(bench: Bench) -> None:
    left: list[str] = []
    bench.control.leave(messages.Goodbye(), lambda: left.append("gone"))
    bench.clock.now += SILENCE_S - 0.1  # a slow peer that does not count as lost may still answer
    bench.timers.fire()
    assert not left
    bench.clock.now += 0.2
    bench.timers.fire()
    assert left == ["gone"]


def test_who_leaves_because_of_an_error_waits_for_answers_only_for_a_moment(bench: Bench) -> None:
    left: list[str] = []
    bench.control.leave(messages.Goodbye("its script failed"), lambda: left.append("gone"))
    bench.clock.now += GOODBYE_TIMEOUT_S + 0.1
    bench.timers.fire()
    assert left == ["gone"]


def test_the_goodbye_waits_for_a_living_peer_as_long_as_any_other_wait(bench: Bench) -> None:
    bench.contribute()
    bench.control.leave(messages.Goodbye(), lambda: None)
    bench.clock.now += STALL_S - 0.1
    bench.timers.fire()
    assert bench.out.messages[:2] == ENDED
    assert not bench.said_goodbye
    bench.clock.now += 0.2
    bench.timers.fire()
    assert bench.said_goodbye


def test_the_goodbye_is_said_as_soon_as_the_late_peer_has_come(bench: Bench) -> None:
    bench.contribute()
    bench.control.leave(messages.Goodbye(), lambda: None)
    bench.clock.now += 60.0
    bench.timers.fire()
    assert not bench.said_goodbye
    bench.answer()
    bench.timers.fire()
    assert bench.said_goodbye


def test_a_rank_that_waits_to_leave_names_the_ranks_it_waits_for(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.contribute()
    bench.control.leave(messages.Goodbye(), lambda: None)
    for waited_s in (19, 21, 23):
        bench.clock.now = 1000.0 + waited_s
        bench.timers.fire()
    assert caplog.messages == [
        "the script of rank 1 has ended, but it has waited for 21 s because other ranks still need it"
    ]
    assert bench.out.messages == [*ENDED, (2, messages.AskMissing(5, 1))]


@pytest.mark.parametrize("news", [messages.Lost(Loss(0, 2, "killed")), messages.Goodbye("its script failed")])
def test_a_loss_ends_the_wait_for_a_late_peer(bench: Bench, news: messages.Message) -> None:
    bench.contribute()
    bench.control.leave(messages.Goodbye(), lambda: None)
    bench.control.handle_message(2, news)
    bench.timers.fire()
    assert bench.said_goodbye


def test_a_shard_that_has_left_in_order_ends_the_wait_for_it(bench: Bench) -> None:
    bench.contribute()
    bench.control.leave(messages.Goodbye(), lambda: None)
    bench.control.handle_message(2, messages.Goodbye())
    bench.timers.fire()
    assert bench.said_goodbye


def test_an_interrupt_ends_the_wait_for_a_late_peer(bench: Bench) -> None:
    bench.contribute()
    left: list[str] = []
    bench.control.leave(messages.Goodbye(), lambda: left.append("gone"))
    bench.control.leave(messages.Goodbye("it was interrupted"), lambda: left.append("gone twice"))
    bench.timers.fire()
    assert (0, messages.Goodbye("it was interrupted")) in bench.out.messages
    bench.clock.now += GOODBYE_TIMEOUT_S + 0.1
    bench.timers.fire()
    assert left == ["gone"]


def test_work_beside_the_exchange_is_waited_for(bench: Bench) -> None:
    bench.exchange.worker.open_work.begin()
    bench.control.leave(messages.Goodbye(), lambda: None)
    assert bench.out.messages == []
    bench.exchange.worker.open_work.end()
    bench.timers.fire()
    assert bench.said_goodbye


# Scripts that have ended, of workers that have not left


def test_a_round_that_lacks_a_worker_whose_script_has_ended_is_an_error() -> None:
    owner = Bench(2)
    owner.contribute()
    owner.control.handle_message(1, messages.Ended([]))
    assert "rank 1 on host beta was lost: its script has ended while others still train" in owner.error


def test_a_round_that_begins_after_a_script_has_ended_is_an_error_at_the_next_tick() -> None:
    owner = Bench(2)
    owner.control.handle_message(1, messages.Ended([]))
    owner.contribute()
    assert not owner.error
    owner.control.tick(owner.clock.now)
    assert "rank 1 on host beta was lost: its script has ended" in owner.error


def test_a_key_that_is_still_to_come_of_an_ended_script_is_waited_for() -> None:
    owner = Bench(2)
    owner.contribute()
    owner.control.handle_message(1, messages.Ended([5]))
    assert not owner.error
    owner.control.handle_message(1, messages.Ended([]))
    assert "rank 1" in owner.error


def test_a_worker_leaves_if_its_own_shard_waits_for_it_in_vain() -> None:
    owner = Bench(2)
    owner.exchange.learn([Slice(KeySpec(6, 4, DType.FLOAT32, Op.SUM, owner=2), (TensorRange(0, 0, 4, 0),))])
    owner.contribute()
    owner.control.leave(messages.Goodbye(), lambda: None)
    assert not owner.said_goodbye
    owner.exchange.handle(1, Header(Kind.PUSH, 6, 1, rank=1, dtype=DType.FLOAT32, job=7), None)
    owner.timers.fire()
    assert owner.said_goodbye


def test_an_ended_script_answers_still(bench: Bench) -> None:
    bench.contribute()
    bench.control.handle_message(2, messages.Ended([]))
    bench.control.tick(bench.clock.now)
    assert not bench.error


def test_an_agreement_that_lacks_a_worker_whose_script_has_ended_is_an_error(coordinator: Bench) -> None:
    coordinator.control.handle_message(1, BARRIER)
    coordinator.control.handle_message(2, messages.Ended([]))
    assert "rank 2 on host gamma was lost: its script has ended" in coordinator.error


def test_a_goodbye_with_an_error_is_sent_at_once(bench: Bench) -> None:
    bench.contribute()
    bench.control.leave(messages.Goodbye("its script failed"), lambda: None)
    assert (2, messages.Goodbye("its script failed")) in bench.out.messages


# Who is late


def test_the_owner_of_a_key_is_asked_for_late_workers_which_are_named(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.contribute()
    bench.control.ask_who_is_missing(10.0)
    assert bench.out.messages == [(2, messages.AskMissing(5, 1))]
    with caplog.at_level(logging.WARNING, "undertow"):
        bench.control.handle_message(2, messages.Missing(1, [0, 2]))
    assert caplog.messages == [
        "rank 1 waits at step 1 for rank 0 on host alpha, 2 on host gamma: alive, but not at this step yet"
    ]


def test_a_part_of_the_job_names_its_ranks_as_the_job_does(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(1, names=(3, 5, 8))
    bench.contribute()
    with caplog.at_level(logging.WARNING, "undertow"):
        bench.control.handle_message(2, messages.Missing(1, [0, 2]))
    assert caplog.messages == [
        "rank 5 waits at step 1 for rank 3 on host alpha, 8 on host gamma: alive, but not at this step yet"
    ]
    bench.control.handle_message(0, messages.Lost(Loss(2, 0, "it closed")))
    assert bench.error == "rank 8 on host gamma was lost: it closed (seen by rank 3); this is rank 5 at step 1"
    assert messages.Lost(Loss(2, 0, "it closed")) in [told for _, told in bench.out.messages]


def test_a_shard_answers_who_is_missing() -> None:
    owner = Bench(2)
    owner.contribute()
    owner.control.handle_message(1, messages.AskMissing(5, 1))
    assert owner.out.messages == [(1, messages.Missing(1, [0, 1]))]


def test_the_owner_of_a_key_names_late_workers_without_a_request(caplog: pytest.LogCaptureFixture) -> None:
    owner = Bench(2)
    owner.contribute()
    owner.control.ask_who_is_missing(10.0)
    assert "rank 2 waits at step 1 for rank 0 on host alpha, 1 on host beta" in caplog.text


def test_a_wait_for_an_agreement_is_said_too(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.control.ask_who_is_missing(10.0)
    assert "rank 1 has waited for 10 s for the other ranks to make the same call" in caplog.text


@pytest.mark.parametrize("ranks", [[], [7], [-1]])
def test_a_list_of_missing_ranks_that_makes_no_sense_is_not_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture, ranks: list[int]
) -> None:
    bench.control.handle_message(2, messages.Missing(1, ranks))
    assert caplog.messages == []


def test_a_join_reaches_the_shard() -> None:
    owner = Bench(2)
    owner.contribute()
    owner.control.handle_message(1, messages.Joined([5], 0, False))
    assert owner.exchange.missing(5, 1) == [0]


# Those who watch


def test_a_status_report_goes_to_the_live_view_and_nowhere_else(coordinator: Bench) -> None:
    coordinator.control.handle_message(2, messages.SideMessage(b"nobody listens yet"))
    heard: list[bytes] = []
    coordinator.control.on_side_message = heard.append
    coordinator.control.handle_message(2, messages.SideMessage(b"figures"))
    assert heard == [b"figures"]
    assert coordinator.out.messages == []
