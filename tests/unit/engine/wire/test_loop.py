"""The engine thread: runs everything posted, in order, and sleeps otherwise."""

from __future__ import annotations

import queue
import selectors
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from undertow.engine.wire import loop as loop_module
from undertow.engine.wire.loop import Loop

HANG_S = 30.0  # nothing here takes this long


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    made.start()
    yield made
    made.stop()


class Results(queue.SimpleQueue[Any]):
    def next(self) -> Any:
        return self.get(timeout=HANG_S)


def test_calls_run_in_the_engine_thread_in_the_order_they_were_posted(loop: Loop) -> None:
    results = Results()
    for number in range(100):
        loop.post(lambda number=number: results.put((number, threading.current_thread().name)))
    assert [results.next() for _ in range(100)] == [(number, "undertow-engine") for number in range(100)]


def test_a_call_posted_to_a_sleeping_thread_wakes_it(loop: Loop) -> None:
    results = Results()
    for _ in range(200):  # each answer lets the thread go back to sleep
        loop.post(results.put, "awake")
        assert results.next() == "awake"


def test_calls_from_many_threads_all_run(loop: Loop) -> None:
    results = Results()
    threads = [threading.Thread(target=lambda: [loop.post(results.put, 1) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert sum(results.next() for _ in range(2000)) == 2000
    for thread in threads:
        thread.join()


def test_a_call_may_post_another(loop: Loop) -> None:
    results = Results()
    loop.post(lambda: loop.post(results.put, "second"))
    assert results.next() == "second"


def test_a_watched_socket_is_served_until_it_is_unwatched(loop: Loop) -> None:
    results = Results()
    ours, theirs = socket.socketpair()

    def ready(events: int) -> None:
        results.put((events, ours.recv(10)))

    loop.post(loop.watch, ours, selectors.EVENT_READ, ready)
    theirs.send(b"one")
    assert results.next() == (selectors.EVENT_READ, b"one")
    loop.post(loop.unwatch, ours)
    loop.post(results.put, "unwatched")
    assert results.next() == "unwatched"
    theirs.send(b"two")
    loop.post(loop.post, results.put, "nothing else")
    assert results.next() == "nothing else"
    ours.close()
    theirs.close()


def test_a_socket_can_be_watched_for_something_else(loop: Loop) -> None:
    results = Results()
    ours, theirs = socket.socketpair()

    def ready(events: int) -> None:
        results.put(events)
        loop.rewatch(ours, selectors.EVENT_READ, lambda events: results.put(ours.recv(10)))

    loop.post(loop.watch, ours, selectors.EVENT_WRITE, ready)
    assert results.next() == selectors.EVENT_WRITE
    theirs.send(b"hello")
    assert results.next() == b"hello"
    loop.post(loop.unwatch, ours)
    loop.post(results.put, "done")
    assert results.next() == "done"
    ours.close()
    theirs.close()


def test_timers_fire_in_the_order_they_are_due(loop: Loop) -> None:
    results = Results()

    def set_timers() -> None:
        loop.later(0.02, lambda: results.put("later"))
        loop.later(0.0, lambda: results.put("now"))
        loop.later(0.02, lambda: results.put("later, set second"))

    loop.post(set_timers)
    assert [results.next() for _ in range(3)] == ["now", "later", "later, set second"]


def test_ticks_continue_until_they_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "TICK_S", 0.001)
    loop, all_ticks = Loop(), Results()
    few_ticks: list[float] = []

    def tick(now: float) -> None:
        few_ticks.append(now)
        if len(few_ticks) == 3:
            loop.no_tick(tick)

    loop.every_tick(tick)
    loop.every_tick(all_ticks.put)
    loop.start()
    times = [all_ticks.next() for _ in range(10)]
    loop.stop()
    assert len(few_ticks) == 3
    assert few_ticks[0] <= times[0] <= few_ticks[1] <= times[1] <= few_ticks[2] <= times[2]


def test_a_stopped_loop_has_no_thread_and_ignores_what_comes_later() -> None:
    loop = Loop()
    loop.start()
    loop.stop()
    assert not loop._thread.is_alive()
    loop.post(pytest.fail, "too late")


def test_a_loop_that_was_never_started_can_be_abandoned() -> None:
    loop = Loop()
    loop.close()
    loop.post(pytest.fail, "nobody is there")


def test_a_defect_in_a_callback_is_passed_to_the_failure_handlers(caplog: pytest.LogCaptureFixture) -> None:
    loop, failures = Loop(), Results()
    loop.on_failure(pytest.fail)
    loop.on_failure(failures.put)
    loop.no_failure(pytest.fail)
    loop.start()
    loop.post(lambda: 1 // 0)
    assert isinstance(failures.next(), ZeroDivisionError)
    loop.stop()
    assert "the engine thread failed" in caplog.text
