"""A job's place is the same on every host that asks for it."""

from __future__ import annotations

from undertow.crossover.standing import KEPT, Standings
from undertow.crossover.turns import Place


def standings_after(*steps: int) -> Standings:
    """Every step costs 2 s."""
    standings = Standings()
    for step in steps:
        standings.hear(step, Place(2.0 * step, 2.0))
    return standings


def test_as_long_as_nobody_has_counted_there_is_no_place() -> None:
    assert Standings().place_for(1) is None
    assert standings_after(1).place_for(2) is None  # not all hosts know of step 1 yet


def test_the_place_for_a_step_is_made_of_the_count_of_two_steps_before() -> None:
    assert standings_after(1).place_for(3) == Place(4.0, 2.0)
    assert standings_after(1, 2).place_for(4) == Place(6.0, 2.0)


def test_a_count_that_came_later_or_earlier_does_not_change_the_place() -> None:
    standings = standings_after(1, 2)
    standings.hear(3, Place(100.0, 50.0))
    assert standings.place_for(4) == standings_after(1, 2).place_for(4)
    assert standings_after(2).place_for(4) == standings_after(1, 2).place_for(4)


def test_counts_that_are_missing_are_made_up_of_what_a_step_costs() -> None:
    assert standings_after(1).place_for(10) == Place(18.0, 2.0)
    assert standings_after(1, 2, 3).place_for(10) == Place(18.0, 2.0)


def test_old_counts_are_not_kept() -> None:
    standings = standings_after(*range(1, 20))
    assert standings.place_for(19 - KEPT + 1) is None
    assert standings.place_for(19 - KEPT + 3) is not None


def test_at_another_arbiter_the_count_begins_anew() -> None:
    standings = standings_after(1, 2)
    standings.forget()
    assert standings.place_for(4) is None
