"""A worker takes turns with others while there is an arbiter, and never fails or hangs because of one."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.support.arbiters import (
    WAITS,
    Puppet,
    arbiter_at,
    ends,
    eventually,
    hello_of,
    in_thread,
    states_at,
    turn_at,
    two_jobs_at,
    words_in,
)
from undertow.crossover import messages, turn_state
from undertow.crossover.client import TurnClient
from undertow.crossover.messages import Ask, EndStep, Give
from undertow.crossover.turn_state import TurnMode

# Taking turns


def test_take_returns_when_the_other_job_has_given_back(path: Path) -> None:
    with arbiter_at(path), two_jobs_at(path) as (first, second):
        first.take()
        taking = in_thread(second.take)
        eventually(lambda: states_at(path) == {"a": "computes", "b": WAITS})
        assert taking.is_alive()
        first.give()
        assert ends(taking)
        assert states_at(path)["b"] == "computes"
        assert second.state.waited_s > 0


def test_two_jobs_never_compute_at_once(path: Path) -> None:
    inside: list[str] = []
    seen: list[list[str]] = []

    def train(name: str, turn: TurnClient) -> None:
        for _ in range(60):
            turn.take()
            inside.append(name)
            time.sleep(0)  # lets the other one in if anything does
            seen.append(list(inside))
            inside.remove(name)
            turn.end_step()

    with arbiter_at(path), two_jobs_at(path) as (first, second):
        threads = [in_thread(lambda: train("a", first)), in_thread(lambda: train("b", second))]
        assert all(ends(thread) for thread in threads)
    assert len(seen) == 120
    assert {tuple(who) for who in seen} == {("a",), ("b",)}


def test_a_worker_gives_the_turn_back_while_it_waits_for_the_network(path: Path) -> None:
    with arbiter_at(path), two_jobs_at(path) as (first, second):
        first.take()
        with first.waiting():
            second.take()  # would wait for ever else
            giving = in_thread(lambda: (eventually(lambda: states_at(path)["a"] == WAITS), second.give()))
        assert ends(giving)
        assert states_at(path)["a"] == "computes"


def test_a_wait_of_a_worker_without_the_turn_does_not_take_it(path: Path) -> None:
    with arbiter_at(path), two_jobs_at(path) as (first, second):
        second.take()
        with first.waiting():
            pass  # and afterwards it need not wait for the other one
        assert states_at(path) == {"a": "waits for the network", "b": "computes"}


def test_a_wait_that_fails_does_not_take_the_turn_again(path: Path) -> None:
    with arbiter_at(path), two_jobs_at(path) as (first, second):
        first.take()
        with contextlib.suppress(ConnectionError), first.waiting():
            second.take()
            raise ConnectionError
        assert states_at(path) == {"a": "waits for the network", "b": "computes"}


def test_an_urgent_job_gets_the_turn_between_two_layers(path: Path) -> None:
    order: list[str] = []

    def hurry(turn: TurnClient) -> None:
        turn.take()
        order.append("urgent")
        turn.give()

    with arbiter_at(path), turn_at(path, "a") as first, turn_at(path, "b", is_urgent=True) as urgent:
        eventually(lambda: first.state.mode is TurnMode.SHARED)
        first.take()
        hurrying = in_thread(lambda: hurry(urgent))
        eventually(lambda: order or (first.make_way() or False))  # as often as there are layers
        order.append("first")
        assert ends(hurrying)
    assert order == ["urgent", "first"]


def test_without_a_recall_a_worker_keeps_the_turn_between_layers(path: Path) -> None:
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome()
        with turn_at(path, "a") as turn:
            assert ends(welcoming)
            taking = in_thread(turn.take)
            assert arbiter.hear() == Ask()
            arbiter.say(messages.Grant())
            assert ends(taking)
            for _ in range(3):
                turn.make_way()
            turn.give()
        assert arbiter.hear_all() == [Give()]


def test_a_job_that_is_alone_sends_little(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_state, "REPORT_EVERY_S", 3600.0)
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome(messages.NowAlone())
        with turn_at(path, "a") as turn:
            assert ends(welcoming)
            eventually(lambda: turn.state.mode is TurnMode.ALONE)
            for _ in range(1000):
                turn.take()
                turn.make_way()
                with turn.waiting():
                    pass
                turn.end_step()
        said = arbiter.hear_all()
    # The first step is always told.
    assert [type(message) for message in said] == [EndStep]


def test_a_worker_that_computes_when_another_job_comes_holds_the_turn(path: Path) -> None:
    with arbiter_at(path), turn_at(path, "a") as first:
        eventually(lambda: first.state.mode is TurnMode.ALONE)
        first.take()
        with turn_at(path, "b") as second:
            taking = in_thread(second.take)
            eventually(lambda: states_at(path) == {"a": "computes", "b": WAITS})
            first.give()
            assert ends(taking)
        eventually(lambda: first.state.mode is TurnMode.ALONE)


def test_all_threads_of_a_worker_get_the_turn(path: Path) -> None:
    """A thread may give back the turn that another thread waits for, which must then ask again."""

    def work(turn: TurnClient) -> None:
        for _ in range(40):
            turn.take()
            turn.give()

    with arbiter_at(path), two_jobs_at(path) as (first, second):
        threads = [in_thread(lambda: work(first)) for _ in range(6)] + [in_thread(lambda: work(second))]
        assert all(ends(thread) for thread in threads)


def test_a_thread_asks_again_if_another_has_given_back(path: Path) -> None:
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome()
        with turn_at(path, "a") as turn:
            assert ends(welcoming)
            taking = in_thread(turn.take)
            assert arbiter.hear() == Ask()
            with turn._changed:  # the other thread sleeps until this one has come and gone
                turn.state.handle(messages.Grant(), 0.0)
                turn.state.give(0.0)
                turn._changed.notify_all()
            assert arbiter.hear() == Ask()
            arbiter.say(messages.Grant())
            assert ends(taking)


def test_the_first_worker_relays_device_times(path: Path) -> None:
    told: list[messages.Relayed] = []
    turn = TurnClient(hello_of("a"), path, relay=told.append)
    with arbiter_at(path), turn_at(path, "b"):
        turn.start()
        turn.take()
        turn.end_step()
        eventually(lambda: told)
        turn.close()
    assert isinstance(told[0], messages.DeviceTime)
    assert told[0].step == 1


def test_requests_carry_the_position_from_relayed_counts(path: Path) -> None:
    relayed: list[messages.Relayed] = []
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome()
        turn = TurnClient(hello_of("a"), path, relay=relayed.append)
        turn.start()
        assert ends(welcoming)
        turn.handle_relayed(messages.DeviceTime(-1, 2.0, 0.5))
        taking = in_thread(turn.take)
        assert arbiter.hear() == Ask(2.5, 0.5)
        arbiter.say(messages.Grant(lift_s=3.0))
        assert ends(taking)
        eventually(lambda: relayed == [messages.Lift(3.0)])
        turn.handle_relayed(messages.Lift(3.0))
        assert arbiter.hear() == messages.Lift(3.0)
        turn.close()


def test_notices_are_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome(messages.Notice("somebody is stopped"))
        with turn_at(path, "a"):
            assert ends(welcoming)
            eventually(lambda: words_in(caplog, "somebody is stopped"))


# Interrupts


def test_an_interrupted_take_gives_back(path: Path) -> None:
    def interrupt() -> None:
        eventually(lambda: states_at(path)["b"] == WAITS)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with arbiter_at(path), two_jobs_at(path) as (first, second):
        first.take()
        interrupting = in_thread(interrupt)
        with pytest.raises(KeyboardInterrupt):
            second.take()
        assert ends(interrupting)
        eventually(lambda: states_at(path) == {"a": "computes", "b": "waits for the network"})
        first.give()
        eventually(lambda: states_at(path)["a"] == "waits for the network")  # and not: b computes


def test_an_interrupted_take_leaves_the_other_threads_their_turn(path: Path) -> None:
    def interrupt() -> None:
        eventually(lambda: len(second._changed._waiters) == 2)  # both sleep
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with arbiter_at(path), two_jobs_at(path) as (first, second):
        first.take()
        beside = in_thread(second.take)
        interrupting = in_thread(interrupt)
        with pytest.raises(KeyboardInterrupt):
            second.take()
        assert ends(interrupting)
        first.give()
        assert ends(beside)
