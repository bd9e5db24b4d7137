"""A worker whose arbiter comes, goes, is silent, or refuses it; and the end of the worker itself."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
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
    status_at,
    turn_at,
    two_jobs_at,
    words_in,
)
from undertow.crossover import client, messages, turn_state
from undertow.crossover.client import TurnClient
from undertow.crossover.messages import Ask, Hello, Query
from undertow.crossover.turn_state import TurnMode
from undertow.errors import ConfigError
from undertow.runtime import process

# Arbiters that come and go


def test_without_an_arbiter_a_worker_computes_and_warns_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with turn_at(path, "a") as turn:
        assert turn.state.mode is TurnMode.NO_ARBITER
        for _ in range(3):
            turn.take()
            turn.make_way()
            turn.end_step()
    assert words_in(caplog, "does not take turns with others: no arbiter is up on this host") == 1


def test_only_one_worker_of_a_host_warns(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    turn = TurnClient(hello_of("a", 1), path, is_verbose=False)
    turn.start()
    turn.close()
    assert not caplog.records


@pytest.mark.usefixtures("quick")
def test_workers_go_on_without_their_arbiter_and_find_the_next(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as stack:
        with arbiter_at(path):
            first, second = stack.enter_context(two_jobs_at(path))
            first.take()
            taking = in_thread(second.take)
            eventually(lambda: states_at(path)["b"] == WAITS)
        assert ends(taking)
        eventually(lambda: first.state.mode is second.state.mode is TurnMode.NO_ARBITER)
        first.end_step()
        second.end_step()
        with arbiter_at(path):
            eventually(lambda: first.state.mode is second.state.mode is TurnMode.SHARED)
            first.take()
            taking = in_thread(second.take)
            eventually(lambda: states_at(path) == {"a": "computes", "b": WAITS})
            first.give()
            assert ends(taking)
        eventually(lambda: first.state.mode is second.state.mode is TurnMode.NO_ARBITER)
    assert words_in(caplog, "the arbiter of this host is gone") == 2  # one of each job


@pytest.mark.usefixtures("quick")
def test_an_arbiter_that_does_not_answer_counts_as_gone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome()
        with turn_at(path, "a") as turn:
            assert ends(welcoming)
            turn.take()  # after a while
            assert turn.state.mode is TurnMode.NO_ARBITER
            said = arbiter.hear_all()
            eventually(lambda: words_in(caplog, "is gone"))
    assert said[0] == Ask()
    assert set(said[1:]) == {Query()}
    assert len(said) < 10  # not only when no more words fit in


@pytest.mark.usefixtures("quick")
def test_an_arbiter_that_answers_queries_may_be_slow_to_grant(path: Path) -> None:
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
            assert turn.state.mode is TurnMode.SHARED
            arbiter.say(messages.Grant())
            assert ends(taking)


@pytest.mark.usefixtures("quick")
def test_a_silent_listener_is_no_arbiter(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Puppet(path), turn_at(path, "a") as turn:
        turn.take()
        assert turn.state.mode is TurnMode.NO_ARBITER
        assert words_in(caplog, "no arbiter is up") == 1


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"type":"Grant"}\n\xff\n', b"x" * (1 << 21)])
def test_a_listener_that_sends_nonsense_is_no_arbiter(path: Path, words: bytes) -> None:
    with Puppet(path) as arbiter:

        def answer() -> None:
            arbiter.accept()
            with contextlib.suppress(OSError):
                arbiter.connection.sendall(words)

        answering = in_thread(answer)
        with turn_at(path, "a") as turn:
            assert turn.state.mode is TurnMode.NO_ARBITER
            turn.take()
            assert ends(answering)


def test_an_arbiter_that_does_not_read_blocks_no_worker(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_state, "REPORT_EVERY_S", -1.0)  # every step is told
    with Puppet(path) as arbiter:
        welcoming = arbiter.welcome(messages.NowAlone())
        with turn_at(path, "a") as turn:
            assert ends(welcoming)
            eventually(lambda: turn.state.mode is TurnMode.ALONE)

            def train() -> None:
                while turn.state.mode is TurnMode.ALONE:
                    turn.take()
                    turn.end_step()

            assert ends(in_thread(train))
            assert turn.state.mode is TurnMode.NO_ARBITER


# The end


def test_a_closed_client_needs_no_turn(path: Path) -> None:
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
def test_a_client_closed_while_it_connects_disconnects(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 20.0)
    with turn_at(path, "a") as turn, Puppet(path) as arbiter:
        arbiter.accept()
        assert isinstance(arbiter.hear(), Hello)
        turn.close()
        arbiter.say(messages.Welcome(30.0))
        assert arbiter.hear_all() == []
        assert ends(in_thread(turn.take))
        assert turn.state.mode is TurnMode.NO_ARBITER


def test_a_process_that_ends_frees_the_device_before_it_says_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Leaving:
        def leave(self, error: str, exit_code: int | None) -> None:
            order.append("goodbye")

        def close(self, error: str, exit_code: int | None) -> None: ...

    monkeypatch.setattr(process, "_groups", {"default": Leaving()})
    monkeypatch.setattr(process.sharing, "close_all", lambda: order.append("device"))
    process.shutdown()
    assert order == ["device", "goodbye"]


FORKS = """
import os, signal, sys
from pathlib import Path
from tests.support.arbiters import hello_of
from undertow.crossover.client import TurnClient

turn = TurnClient(hello_of("a"), Path(sys.argv[1]))
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


def test_a_forked_child_takes_no_turns_and_does_not_hold_the_connection(path: Path) -> None:
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
        pytest.raises(
            ConfigError, match=r"cannot share cpu: the arbiter has version 2.*version 7: restart the arbiter"
        ),
        turn_at(path, "a", version=7),
    ):
        pass


def test_a_job_that_does_not_fit_into_memory_is_refused(path: Path) -> None:
    with (
        arbiter_at(path),
        turn_at(path, "a"),
        pytest.raises(ConfigError, match=r"not have enough memory.*need 9 GB, and 2 GB are free"),
        turn_at(path, "b", growth_bytes=9 * 10**9, free_bytes=2 * 10**9),
    ):
        pass


def test_the_number_of_jobs_is_limited(path: Path) -> None:
    with arbiter_at(path), contextlib.ExitStack() as stack:
        for job in range(8):
            stack.enter_context(turn_at(path, str(job)))
        with pytest.raises(ConfigError, match="8 jobs already share cpu: start this one later"):
            stack.enter_context(turn_at(path, "ninth"))
        stack.enter_context(turn_at(path, "7", rank=1))  # a job that is there may grow
        assert len(states_at(path)) == 8


@pytest.mark.usefixtures("quick")
def test_a_job_refused_by_a_new_arbiter_goes_on_without_turns(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with turn_at(path, "a", version=7) as turn, arbiter_at(path):
        assert turn.state.mode is TurnMode.NO_ARBITER
        eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "undertow-turn"])
        turn.take()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_socket_where_others_could_have_put_it_is_not_used(path: Path) -> None:
    path.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="is not a folder of this user alone"), turn_at(path, "a"):
        pass
