"""Waits end with the event, with the group's error or after the stall timeout, and are never silent for long."""

from __future__ import annotations

import threading

import pytest

from undertow.engine.client import waiting
from undertow.engine.client.waiting import FIRST_NOTICE_S, Ticket, Waiters
from undertow.engine.core.flow import Contribution
from undertow.errors import PeerLost, UndertowError


class Clock:
    """Time that passes only while somebody waits for an event of this clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        monkeypatch.setattr(waiting.time, "monotonic", lambda: self.now)

    def event(self, *, set_after: float | None = None) -> threading.Event:
        clock, due = self, None if set_after is None else self.now + set_after

        class Waited(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                assert timeout is not None
                clock.pauses.append(timeout)
                clock.now += timeout
                if due is not None and clock.now >= due:
                    self.set()
                return self.is_set()

        return Waited()


def contribution(*, absent: bool = False) -> Contribution:
    return Contribution(0, None, None, 0, lambda done: None, absent=absent)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_what_is_done_already_is_not_waited_for(clock: Clock) -> None:
    event = clock.event()
    event.set()
    Waiters(60.0, pytest.fail).wait(event)
    assert clock.pauses == []


def test_a_wait_ends_with_the_event_and_without_a_notice(clock: Clock) -> None:
    Waiters(60.0, pytest.fail).wait(clock.event(set_after=FIRST_NOTICE_S))


def test_a_stall_is_noticed_again_and_again_but_ever_less_often(clock: Clock) -> None:
    notices: list[float] = []
    Waiters(10_000.0, notices.append).wait(clock.event(set_after=1000.0))
    assert notices == [20.0, 60.0, 140.0, 300.0, 600.0, 900.0]


def test_a_stall_ends_with_an_error_that_recommends_a_setting(clock: Clock) -> None:
    with pytest.raises(
        UndertowError, match=r"nothing has arrived for 35 s .* Set UNDERTOW_STALL_TIMEOUT to wait longer"
    ):
        Waiters(35.0, lambda waited_s: None).wait(clock.event())
    assert clock.now == 1035.0


def test_a_short_stall_timeout_comes_before_any_notice(clock: Clock) -> None:
    with pytest.raises(UndertowError, match="for 2 s"):
        Waiters(2.0, pytest.fail).wait(clock.event())


def test_the_first_error_wins(clock: Clock) -> None:
    waiters = Waiters(60.0, pytest.fail)
    assert waiters.fail(PeerLost("rank 3 was lost"))
    assert not waiters.fail(UndertowError("and then this"))
    with pytest.raises(PeerLost, match="rank 3 was lost"):
        waiters.wait(clock.event())
    with pytest.raises(PeerLost):
        waiters.check()
    assert clock.pauses == []


def test_every_wait_raises_an_error_of_its_own() -> None:
    waiters = Waiters(60.0, pytest.fail)
    waiters.fail(PeerLost("rank 3 was lost"))
    raised = []
    for _ in range(2):
        with pytest.raises(PeerLost) as caught:
            waiters.check()
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert raised[0] is not waiters.error


def test_an_error_is_raised_even_if_the_event_is_set() -> None:
    waiters, event = Waiters(60.0, pytest.fail), threading.Event()
    event.set()
    waiters.fail(PeerLost("rank 3 was lost"))
    with pytest.raises(PeerLost):
        waiters.wait(event)


def test_an_error_ends_a_wait_that_has_begun() -> None:
    begun = threading.Event()
    waiters = Waiters(60.0, pytest.fail)
    caught: list[UndertowError] = []

    class Announced(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            begun.set()
            return super().wait(timeout)

    def wait() -> None:
        try:
            waiters.wait(Announced())
        except UndertowError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    waiters.fail(PeerLost("rank 3 was lost"))
    thread.join()
    assert str(caught[0]) == "rank 3 was lost"


def test_without_an_error_there_is_nothing_to_raise() -> None:
    waiters = Waiters(60.0, pytest.fail)
    waiters.check()
    assert waiters.error is None


def test_a_ticket_is_done_with_its_last_answer() -> None:
    ticket = Ticket(2)
    ticket.answer(contribution())
    assert not ticket.done.is_set()
    ticket.answer(contribution())
    assert ticket.done.is_set()
    assert not ticket.absent


def test_a_ticket_for_nothing_is_done_at_once() -> None:
    assert Ticket(0).done.is_set()


def test_a_ticket_remembers_that_somebody_was_absent() -> None:
    ticket = Ticket(3)
    ticket.answer(contribution())
    ticket.answer(contribution(absent=True))
    ticket.answer(contribution())
    assert ticket.absent


def test_a_wait_with_a_timeout_returns_whether_the_event_was_set(clock: Clock) -> None:
    waiters = Waiters(60.0, pytest.fail)
    assert waiters.wait_within(clock.event(set_after=3.0), 5.0)
    assert not waiters.wait_within(clock.event(), 5.0)
    assert clock.pauses == [5.0, 5.0]


def test_an_error_ends_a_wait_with_a_limit() -> None:
    waiters = Waiters(60.0, pytest.fail)

    class Failing(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waiters.fail(PeerLost("rank 3 was lost"))
            return super().wait(0)

    event = Failing()
    with pytest.raises(PeerLost, match="rank 3 was lost"):
        waiters.wait_within(event, 5.0)
    assert event.is_set()


def test_a_ticket_may_be_answered_in_any_one_thread() -> None:
    """Torch's own process group answers in a thread of torch's."""
    told: list[int] = []
    ticket = Ticket(2, lambda: told.append(threading.get_ident()))
    done = ticket.done

    def answer() -> None:
        ticket.answer(contribution())
        ticket.answer(contribution())

    thread = threading.Thread(target=answer)
    thread.start()
    assert done.wait(10.0)
    thread.join()
    assert told == [thread.ident]


def test_a_ticket_takes_no_more_answers_than_it_has() -> None:
    ticket = Ticket(1)
    ticket.answer(contribution())
    with pytest.raises(AssertionError, match="more answers"):
        ticket.answer(contribution())
    assert ticket.is_done
