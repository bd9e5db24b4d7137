"""A worker takes turns with others while there is an arbiter, and never fails or hangs because of one."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.arbiters import (
    Puppet,
    arbiter_at,
    ends,
    eventually,
    hello_of,
    in_thread,
    states_at,
    status_at,
    turn_at,
    two_jobs_at,
)
from undertow.crossover import client, messages, part
from undertow.crossover.client import Turn
from undertow.crossover.messages import Ask, EndStep, Give, Hello, Query
from undertow.crossover.part import Mode
from undertow.crossover.turns import Place
from undertow.errors import ConfigError
from undertow.runtime import process

WAITS = "waits for its turn"


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ut-") as folder:
        yield Path(folder) / "s"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds takes a moment."""
    monkeypatch.setattr(client, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(client, "ANSWER_S", 0.2)
    monkeypatch.setattr(client, "ASK_EVERY_S", 0.05)


def words_in(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


# Taking turns


def test_a_worker_returns_from_take_when_the_other_job_has_given(path: Path) -> None:
    with arbiter_at(path), two_jobs_at(path) as (first, second):
        first.take()
        taking = in_thread(second.take)
        eventually(lambda: states_at(path) == {"a": "computes", "b": WAITS})
        assert taking.is_alive()
        first.give()
        assert ends(taking)
        assert states_at(path)["b"] == "computes"
        assert second.waited_s > 0


def test_two_jobs_never_compute_at_once(path: Path) -> None:
    inside: list[str] = []
    seen: list[list[str]] = []

    def train(name: str, turn: Turn) -> None:
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


def test_whoever_waits_for_the_network_hands_over_and_gets_back(path: Path) -> None:
    with arbiter_at(path), two_jobs_at(path) as (first, second):
        first.take()
        with first.waiting():
            second.take()  # would wait for ever else
            giving = in_thread(lambda: (eventually(lambda: states_at(path)["a"] == WAITS), second.give()))
        assert ends(giving)
        assert states_at(path)["a"] == "computes"


def test_a_wait_of_one_that_does_not_compute_asks_for_nothing(path: Path) -> None:
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


def test_between_two_layers_an_urgent_job_is_let_in(path: Path) -> None:
    order: list[str] = []

    def hurry(turn: Turn) -> None:
        turn.take()
        order.append("urgent")
        turn.give()

    with arbiter_at(path), turn_at(path, "a") as first, turn_at(path, "b", is_urgent=True) as urgent:
        eventually(lambda: first.mode is Mode.SHARED)
        first.take()
        hurrying = in_thread(lambda: hurry(urgent))
        eventually(lambda: order or (first.make_way() or False))  # as often as there are layers
        order.append("first")
        assert ends(hurrying)
    assert order == ["urgent", "first"]


def test_without_a_recall_nobody_makes_way(path: Path) -> None:
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


def test_a_job_that_is_alone_asks_for_nothing_and_says_little(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "WORD_EVERY_S", 3600.0)
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome(messages.Solitude())
        with turn_at(path, "a") as turn:
            assert ends(welcoming)
            eventually(lambda: turn.mode is Mode.ALONE)
            for _ in range(1000):
                turn.take()
                turn.make_way()
                with turn.waiting():
                    pass
                turn.end_step()
        said = arbiter.hear_all()
    # The first step is always told.
    assert [type(message) for message in said] == [EndStep]


def test_one_that_computes_when_another_job_comes_holds_the_turn(path: Path) -> None:
    with arbiter_at(path), turn_at(path, "a") as first:
        eventually(lambda: first.mode is Mode.ALONE)
        first.take()
        with turn_at(path, "b") as second:
            taking = in_thread(second.take)
            eventually(lambda: states_at(path) == {"a": "computes", "b": WAITS})
            first.give()
            assert ends(taking)
        eventually(lambda: first.mode is Mode.ALONE)


def test_all_threads_of_a_worker_come_through(path: Path) -> None:
    """One may give back what another one still waited for: that one must ask for itself."""

    def work(turn: Turn) -> None:
        for _ in range(40):
            turn.take()
            turn.give()

    with arbiter_at(path), two_jobs_at(path) as (first, second):
        threads = [in_thread(lambda: work(first)) for _ in range(6)] + [in_thread(lambda: work(second))]
        assert all(ends(thread) for thread in threads)


def test_a_thread_that_was_overtaken_asks_for_itself(path: Path) -> None:
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome()
        with turn_at(path, "a") as turn:
            assert ends(welcoming)
            taking = in_thread(turn.take)
            assert arbiter.hear() == Ask()
            with turn._changed:  # the other thread sleeps until this one has come and gone
                turn._part.hear(messages.Grant(), 0.0)
                turn._part.give(0.0)
                turn._changed.notify_all()
            assert arbiter.hear() == Ask()
            arbiter.say(messages.Grant())
            assert ends(taking)


def test_what_the_job_has_had_is_told_to_its_first_worker(path: Path) -> None:
    told: list[tuple[int, Place]] = []
    turn = Turn(hello_of("a"), path, tell=lambda step, place: told.append((step, place)))
    with arbiter_at(path), turn_at(path, "b"):
        turn.start()
        turn.take()
        turn.end_step()
        eventually(lambda: told)
        turn.close()
    assert told[0][0] == 1
    assert told[0][1].virtual_s >= 0


def test_standings_of_other_hosts_go_along_with_what_is_asked(path: Path) -> None:
    lifted: list[float] = []
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome()
        turn = Turn(hello_of("a"), path, lift=lifted.append)
        turn.start()
        assert ends(welcoming)
        turn.hear_standing(-1, Place(2.0, 0.5))
        taking = in_thread(turn.take)
        assert arbiter.hear() == Ask(2.5, 0.5)
        arbiter.say(messages.Grant(lift_s=3.0))
        assert ends(taking)
        eventually(lambda: lifted == [3.0])
        turn.raise_standing(3.0)
        assert arbiter.hear() == messages.Lift(3.0)
        turn.close()


def test_what_the_user_should_know_is_said(path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


# Arbiters that come and go


def test_without_an_arbiter_it_computes_and_says_so_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with turn_at(path, "a") as turn:
        assert turn.mode is Mode.LOOSE
        for _ in range(3):
            turn.take()
            turn.make_way()
            turn.end_step()
    assert words_in(caplog, "does not take turns with others: no arbiter is up on this host") == 1


def test_only_one_worker_of_a_host_says_so(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    turn = Turn(hello_of("a", 1), path, speaks=False)
    turn.start()
    turn.close()
    assert not caplog.records


@pytest.mark.usefixtures("quick")
def test_an_arbiter_that_goes_lets_all_go_on_and_is_found_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as stack:
        with arbiter_at(path):
            first, second = stack.enter_context(two_jobs_at(path))
            first.take()
            taking = in_thread(second.take)
            eventually(lambda: states_at(path)["b"] == WAITS)
        assert ends(taking)
        eventually(lambda: first.mode is second.mode is Mode.LOOSE)
        first.end_step()
        second.end_step()
        with arbiter_at(path):
            eventually(lambda: first.mode is second.mode is Mode.SHARED)
            first.take()
            taking = in_thread(second.take)
            eventually(lambda: states_at(path) == {"a": "computes", "b": WAITS})
            first.give()
            assert ends(taking)
        eventually(lambda: first.mode is second.mode is Mode.LOOSE)
    assert words_in(caplog, "the arbiter of this host is gone") == 2  # one of each job


@pytest.mark.usefixtures("quick")
def test_an_arbiter_that_does_not_answer_is_as_good_as_gone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome()
        with turn_at(path, "a") as turn:
            assert ends(welcoming)
            turn.take()  # after a while
            assert turn.mode is Mode.LOOSE
            said = arbiter.hear_all()
            eventually(lambda: words_in(caplog, "is gone"))
    assert said[0] == Ask()
    assert set(said[1:]) == {Query()}
    assert len(said) < 10  # not only when no more words fit in


@pytest.mark.usefixtures("quick")
def test_an_arbiter_that_answers_may_take_its_time(path: Path) -> None:
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome()
        with turn_at(path, "a") as turn:
            assert ends(welcoming)
            taking = in_thread(turn.take)
            assert arbiter.hear() == Ask()
            for _ in range(8):  # together longer than it would wait for a sign
                assert arbiter.hear() == Query()
                arbiter.say(messages.Status(pid=1, lease_s=1.0, up_s=1.0, devices=[], notices=[]))
            assert taking.is_alive()
            assert turn.mode is Mode.SHARED
            arbiter.say(messages.Grant())
            assert ends(taking)


@pytest.mark.usefixtures("quick")
def test_whoever_listens_and_says_nothing_is_no_arbiter(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Puppet(path), turn_at(path, "a") as turn:
        turn.take()
        assert turn.mode is Mode.LOOSE
        assert words_in(caplog, "no arbiter is up") == 1


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"type":"Grant"}\n\xff\n', b"x" * (1 << 21)])
def test_nonsense_is_no_arbiter(path: Path, words: bytes) -> None:
    with Puppet(path) as arbiter:

        def answer() -> None:
            arbiter.accept()
            with contextlib.suppress(OSError):
                arbiter.connection.sendall(words)

        answering = in_thread(answer)
        with turn_at(path, "a") as turn:
            assert turn.mode is Mode.LOOSE
            turn.take()
            assert ends(answering)


def test_one_that_does_not_read_holds_nobody_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "WORD_EVERY_S", -1.0)  # every step is told
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome(messages.Solitude())
        with turn_at(path, "a") as turn:
            assert ends(welcoming)
            eventually(lambda: turn.mode is Mode.ALONE)

            def train() -> None:
                while turn.mode is Mode.ALONE:
                    turn.take()
                    turn.end_step()

            assert ends(in_thread(train))
            assert turn.mode is Mode.LOOSE


# The end


def test_who_closes_has_left_and_needs_no_turn(path: Path) -> None:
    with arbiter_at(path), two_jobs_at(path) as (first, second):
        first.take()
        taking = in_thread(second.take)
        eventually(lambda: states_at(path)["b"] == WAITS)
        second.close()
        assert ends(taking)
        eventually(lambda: list(states_at(path)) == ["a"])
        second.take()
        second.give()
        first.close()
        eventually(lambda: not status_at(path).devices)


@pytest.mark.usefixtures("quick")
def test_who_closes_while_it_meets_an_arbiter_leaves_that_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 20.0)
    with turn_at(path, "a") as turn, Puppet(path) as arbiter:
        arbiter.accept()
        assert isinstance(arbiter.hear(), Hello)
        turn.close()
        arbiter.say(messages.Welcome(30.0))
        assert arbiter.hear_all() == []
        assert ends(in_thread(turn.take))
        assert turn.mode is Mode.LOOSE


def test_a_process_that_ends_frees_the_device_before_it_says_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Leaving:
        def close(self, error: str) -> None:
            order.append("goodbye")

    monkeypatch.setattr(process, "_groups", {"default": Leaving()})
    monkeypatch.setattr(process.sharing, "close_all", lambda: order.append("device"))
    process.shutdown()
    assert order == ["device", "goodbye"]


FORKS = """
import os, signal, sys
from pathlib import Path
from tests.unit.arbiters import hello_of
from undertow.crossover.client import Turn

turn = Turn(hello_of("a"), Path(sys.argv[1]))
turn.start()
turn.take()
child = os.fork()
if child == 0:
    turn.abandon()
    turn.take()
    turn.give()
    turn.close()
    os.write(1, b"free\\n")
    signal.pause()
os.write(1, b"%d\\n" % child)
signal.pause()
"""


def test_a_forked_child_neither_takes_part_nor_keeps_its_parent_in(path: Path) -> None:
    with arbiter_at(path):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        parent = subprocess.Popen([sys.executable, "-c", FORKS, path], stdout=subprocess.PIPE, env=environment)
        child = 0
        try:
            words = {parent.stdout.readline().strip() for _ in range(2)}
            child = int(next(word for word in words if word != b"free"))
            assert list(states_at(path)) == ["a"]
            parent.kill()
            eventually(lambda: not status_at(path).devices)
            os.kill(child, 0)  # it lives
        finally:
            if child:
                os.kill(child, signal.SIGKILL)
            parent.kill()
            parent.wait()
            parent.stdout.close()


# Who is not wanted


def test_a_job_of_another_version_is_refused(path: Path) -> None:
    with (
        arbiter_at(path),
        pytest.raises(ConfigError, match=r"cannot share cpu: the arbiter speaks version 1.*version 7: restart it"),
        turn_at(path, "a", version=7),
    ):
        pass


def test_a_job_that_does_not_fit_into_memory_is_refused(path: Path) -> None:
    with (
        arbiter_at(path),
        turn_at(path, "a"),
        pytest.raises(ConfigError, match=r"not enough memory.*need 9.0 GB, and 2.0 GB are free"),
        turn_at(path, "b", growth_bytes=9 * 10**9, free_bytes=2 * 10**9),
    ):
        pass


def test_there_is_an_end_to_the_number_of_jobs(path: Path) -> None:
    with arbiter_at(path), contextlib.ExitStack() as stack:
        for job in range(8):
            stack.enter_context(turn_at(path, str(job)))
        with pytest.raises(ConfigError, match="8 jobs share cpu already: start this one later"):
            stack.enter_context(turn_at(path, "ninth"))
        stack.enter_context(turn_at(path, "7", rank=1))  # a job that is there may grow
        assert len(states_at(path)) == 8


@pytest.mark.usefixtures("quick")
def test_whom_a_new_arbiter_does_not_want_goes_on_without(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with turn_at(path, "a", version=7) as turn, arbiter_at(path):
        assert turn.mode is Mode.LOOSE
        eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "undertow-turn"])
        turn.take()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_socket_where_others_could_have_put_it_is_not_used(path: Path) -> None:
    path.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="is not a folder of this user alone"), turn_at(path, "a"):
        pass
