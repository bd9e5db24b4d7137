"""A completion is done with its last answer, notifies waiting threads, and then arrives at the gates."""

from __future__ import annotations

import gc
import weakref

from undertow.engine.core.flow import Contribution
from undertow.sync.completion import Arrivals, Completion


def make_answer(*, absent: bool = False) -> Contribution:
    answer = Contribution(0, None, None, 1, lambda contribution: None)
    answer.absent = absent
    return answer


def test_a_completion_arrives_with_its_last_answer() -> None:
    arrivals = Arrivals()
    completion = Completion(2, [3, 4], arrivals)
    completion.answer(make_answer())
    assert not completion.is_done
    assert not arrivals
    completion.answer(make_answer())
    assert completion.is_done
    assert [one.members for one in arrivals] == [[3, 4]]


def test_completions_arrive_in_the_order_of_their_last_answers() -> None:
    arrivals = Arrivals()
    first, second = Completion(1, [0], arrivals), Completion(1, [1], arrivals)
    second.answer(make_answer())
    first.answer(make_answer())
    assert [one.members for one in arrivals] == [[1], [0]]


def test_waiting_threads_are_notified_before_a_completion_arrives() -> None:
    woken: list[bool] = []

    class Watched(Arrivals):
        def append(self, completion: Completion) -> None:
            woken.append(completion.is_done and completion.done.is_set())

    completion = Completion(1, [0], Watched())
    event = completion.done
    completion.answer(make_answer())
    assert event.is_set()
    assert woken == [True]


def test_a_completion_remembers_an_absent_worker() -> None:
    completion = Completion(2, [0])
    completion.answer(make_answer(absent=True))
    completion.answer(make_answer())
    assert completion.absent


def test_a_taken_completion_is_freed_without_garbage_collection() -> None:
    arrivals = Arrivals()
    completion = Completion(1, [0], arrivals)
    completion.answer(make_answer())
    arrivals.popleft()
    ref = weakref.ref(completion)
    gc.disable()
    try:
        del completion
        assert ref() is None
    finally:
        gc.enable()
