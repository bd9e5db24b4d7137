"""The engine and torch's threads report results to gates at the same time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from undertow.engine.core.flow import Contribution
from undertow.sync.completion import Arrivals, Completion
from undertow.torch.gates.gates import Gates

COUNT = 2000
CONTRIBUTION = Contribution(-1, None, None, 1, lambda contribution: None)


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """Make threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Tally:
    """A fake of gates that are not closed, which counts how often each one is taken."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []

    def make_gate(self, table: int, index: int) -> Any:
        tally = self

        class Open:
            @property
            def is_closed(self) -> bool:
                tally.taken.append((table, index))
                return False

        return Open()


def answer_all(completions: list[Completion]) -> None:
    for completion in completions:
        completion.answer(CONTRIBUTION)


def test_no_arrival_is_lost_or_taken_twice_from_any_threads() -> None:
    gates, tally = Gates(), Tally()
    tables: list[Any] = [object(), object()]
    threads = []
    for number, table in enumerate(tables):
        gates._gates[table] = [tally.make_gate(number, index) for index in range(COUNT)]
        arrivals = gates.expect(table)
        completions = [Completion(1, range(index, index + 4), arrivals) for index in range(0, COUNT, 4)]
        # Two threads for one table: the engine's and one of torch's.
        threads += [threading.Thread(target=answer_all, args=(completions[part::2],)) for part in (0, 1)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        gates.make_updates()
    gates.make_updates()
    assert sorted(tally.taken) == [(table, index) for table in (0, 1) for index in range(COUNT)]


def test_a_completion_arrives_with_its_last_answer_and_only_once() -> None:
    arrivals = Arrivals()
    completion = Completion(2, [3, 4], arrivals)
    completion.answer(CONTRIBUTION)
    assert not completion.is_done
    assert not arrivals
    completion.answer(CONTRIBUTION)
    assert completion.is_done
    assert list(arrivals) == [completion]


def test_late_results_of_an_earlier_pass_reach_no_gate() -> None:
    gates, tally = Gates(), Tally()
    table: Any = object()
    gates._gates[table] = [tally.make_gate(0, 0)]
    late = Completion(1, [0], gates.expect(table))
    gates.expect(table)
    late.answer(CONTRIBUTION)
    gates.make_updates()
    assert tally.taken == []


def test_a_retired_wrapper_takes_no_more_completions() -> None:
    gates, tally = Gates(), Tally()
    table: Any = object()
    gates._gates[table] = [tally.make_gate(0, 0)]
    completion = Completion(1, [0], gates.expect(table))
    gates.retire()
    tally.taken.clear()  # it has asked whether its gates are closed
    completion.answer(CONTRIBUTION)
    gates.make_updates()
    assert tally.taken == []
