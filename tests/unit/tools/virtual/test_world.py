"""Calls are made in the order of their times, and those of equal times in the order in which they were planned."""

from __future__ import annotations

import math

from undertow.tools.virtual.world import Clock


def test_calls_are_made_in_their_order() -> None:
    clock, seen = Clock(), list[tuple[float, str]]()

    def see(what: str) -> None:
        seen.append((clock(), what))

    for time_s, what in ((2.0, "last"), (1.0, "first"), (1.0, "second")):
        clock.at(time_s, see, what)
    clock.at(1.0, clock.after, 0.5, see, "later")
    clock.step()
    assert (seen, clock.next_s) == ([(1.0, "first")], 1.0)
    clock.run()
    assert seen[1:] == [(1.0, "second"), (1.5, "later"), (2.0, "last")]
    assert clock.next_s == math.inf


def test_a_clock_that_is_stopped_does_no_more() -> None:
    clock, seen = Clock(), list[str]()

    def stop() -> None:
        clock.stop()
        clock.at(2.0, seen.append, "what the stopping call leads to")

    clock.at(1.0, stop)
    clock.at(1.5, seen.append, "what was due")
    clock.run()
    assert (seen, clock.now_s) == ([], 1.0)


def test_the_earliest_call_comes_first_and_ties_come_in_their_order() -> None:
    clock, heard = Clock(), []
    for time_s, name in ((2.0, "d"), (1.0, "b"), (2.0, "e"), (0.0, "a"), (1.0, "c")):
        clock.at(time_s, lambda name: heard.append((clock.now_s, name)), name)
    clock.run()
    assert heard == [(0.0, "a"), (1.0, "b"), (1.0, "c"), (2.0, "d"), (2.0, "e")]


def test_a_call_may_ask_for_further_calls_now_and_later() -> None:
    clock, heard = Clock(), []

    def call(left: int) -> None:
        heard.append((clock.now_s, left))
        if left:
            clock.at(clock.now_s + (left % 2), call, left - 1)

    clock.at(1.5, call, 3)
    clock.run()
    assert heard == [(1.5, 3), (2.5, 2), (2.5, 1), (3.5, 0)]
