"""A worker's part: it asks only if it must, and computes only if it may."""

from __future__ import annotations

import pytest

from undertow.crossover.messages import Ask, Company, EndStep, Give, Grant, Notice, Recall, Solitude, Standing
from undertow.crossover.part import WORD_EVERY_S, Mode, Part


def make_part(mode: Mode) -> Part:
    part = Part()
    if mode is not Mode.LOOSE:
        part.meet()
    if mode is Mode.ALONE:
        part.hear(Solitude(), now=0.0)
    assert part.mode is mode
    return part


def computing_part() -> Part:
    """With a turn that the arbiter knows of."""
    part = make_part(Mode.SHARED)
    part.take(now=0.0)
    part.hear(Grant(), now=0.0)
    return part


# Without turns


@pytest.mark.parametrize("mode", [Mode.LOOSE, Mode.ALONE])
def test_nobody_asks_if_there_is_nobody_else(mode: Mode) -> None:
    part = make_part(mode)
    assert part.take(now=1.0) == []
    assert part.is_computing
    assert part.give(now=2.0) == []
    assert not part.is_computing


def test_a_lone_worker_says_what_it_did_in_a_word_or_two_per_second() -> None:
    part, said = make_part(Mode.ALONE), []
    for step in range(1, 101):
        part.take(now=0.01 * step)
        said += part.end_step(now=0.01 * step + 0.005)
    assert sum(word.steps for word in said if isinstance(word, EndStep)) > 60
    assert len(said) <= 1 + 1.0 / WORD_EVERY_S
    assert said[0] == EndStep(1, 1, pytest.approx(0.005), 0.0, is_alone=True)  # the first step is always told
    second = said[1]
    assert isinstance(second, EndStep)
    assert second.is_alone
    assert second.compute_s == pytest.approx(0.005 * second.steps)
    assert second.step == 1 + second.steps


# With turns


def test_it_computes_when_it_is_granted_the_turn() -> None:
    part = make_part(Mode.SHARED)
    assert part.take(now=1.0) == [Ask()]
    assert part.take(now=1.5) == []  # once is enough
    assert (part.is_waiting, part.is_computing) == (True, False)
    part.hear(Grant(), now=3.0)
    assert (part.is_waiting, part.is_computing, part.is_granted) == (False, True, True)
    assert part.waited_s == 2.0
    assert part.take(now=3.0) == []
    assert part.give(now=4.0) == [Give()]
    assert part.give(now=4.0) == []


def test_who_does_not_want_the_turn_any_more_says_so_and_ignores_the_grant() -> None:
    part = make_part(Mode.SHARED)
    part.take(now=1.0)
    assert part.give(now=2.0) == [Give()]
    part.hear(Grant(), now=2.0)
    assert not part.is_computing
    assert not part.is_granted
    assert part.waited_s == 1.0


def test_a_step_ends_with_a_give_and_what_it_took() -> None:
    part = computing_part()
    part.give(now=2.0)
    part.note_network(0.5)
    part.take(now=2.5)
    part.hear(Grant(), now=2.5)
    assert part.end_step(now=3.5) == [Give(), EndStep(1, 1, 3.0, 0.5, is_alone=False)]
    part.take(now=3.5)
    part.hear(Grant(), now=4.0)
    assert part.end_step(now=5.0) == [Give(), EndStep(2, 1, 1.0, 0.0, is_alone=False)]


def test_a_recall_holds_until_it_has_given_back() -> None:
    part = computing_part()
    part.hear(Recall(), now=1.0)
    assert part.is_recalled
    part.give(now=1.0)
    assert not part.is_recalled
    part.hear(Recall(), now=1.0)  # it crossed the give
    assert not part.is_recalled


def test_an_ask_has_the_jobs_place_for_the_next_step() -> None:
    part = computing_part()
    for step in (1, 2, 3):
        part.hear(Standing(step, 10.0 * step, 1.0), now=1.0)
        part.end_step(now=1.0)
    assert part.take(now=2.0) == [Ask(21.0, 1.0)]  # for step 4, of the count after step 2


def test_words_for_the_user_change_nothing() -> None:
    part = computing_part()
    assert part.hear(Notice("a and b gain nothing"), now=1.0) == []
    assert part.is_granted


# Company comes and goes


def test_who_computes_when_company_comes_holds_the_turn() -> None:
    part = make_part(Mode.ALONE)
    part.take(now=0.0)
    assert part.hear(Company(), now=0.1) == []
    assert part.is_granted
    part.hear(Recall(), now=0.1)
    assert part.is_recalled
    assert part.give(now=0.2) == [Give()]
    assert part.take(now=0.2) == [Ask()]


def test_who_does_not_compute_then_gives_back() -> None:
    part = make_part(Mode.ALONE)
    assert part.hear(Company(), now=0.1) == [Give()]
    assert part.take(now=0.2) == [Ask()]


def test_steps_that_nobody_counted_are_told_when_company_comes() -> None:
    part = make_part(Mode.ALONE)
    part.end_step(now=0.0)
    part.take(now=0.0)
    assert part.end_step(now=0.1) == []
    assert part.hear(Company(), now=0.2) == [EndStep(2, 1, 0.1, 0.0, is_alone=True), Give()]
    part.take(now=0.2)
    part.hear(Grant(), now=0.2)
    assert part.end_step(now=0.3)[1] == EndStep(3, 1, pytest.approx(0.1), 0.0, is_alone=False)


def test_who_waits_when_the_others_leave_goes_on() -> None:
    part = make_part(Mode.SHARED)
    part.take(now=0.0)
    part.hear(Solitude(), now=1.0)
    assert part.is_computing
    assert part.waited_s == 1.0
    part.hear(Grant(), now=1.1)  # it was on its way
    assert not part.is_granted
    assert part.give(now=2.0) == []


def test_who_computes_when_the_others_leave_need_not_give_back() -> None:
    part = computing_part()
    part.hear(Recall(), now=1.0)
    part.hear(Solitude(), now=1.0)
    assert part.is_computing
    assert not part.is_recalled
    assert part.give(now=2.0) == []


# Arbiters come and go


def test_without_its_arbiter_whoever_waits_goes_on() -> None:
    part = make_part(Mode.SHARED)
    part.take(now=0.0)
    part.lose(now=1.0)
    assert part.mode is Mode.LOOSE
    assert part.is_computing
    assert part.give(now=2.0) == []


def test_at_a_new_arbiter_it_goes_on_computing_once_and_then_asks() -> None:
    part = make_part(Mode.LOOSE)
    part.take(now=0.0)
    part.meet()
    part.hear(Recall(), now=0.5)  # it has no turn that could be recalled
    assert not part.is_recalled
    assert part.give(now=1.0) == []
    assert part.take(now=1.0) == [Ask()]


@pytest.mark.parametrize("how", ["lose", "solitude"])
def test_a_count_of_before_is_forgotten(how: str) -> None:
    part = computing_part()
    for step in (1, 2, 3):
        part.hear(Standing(step, 10.0 * step, 1.0), now=1.0)
        part.end_step(now=1.0)
    if how == "lose":
        part.lose(now=2.0)
        part.meet()
    else:
        part.hear(Solitude(), now=2.0)
        part.hear(Company(), now=2.0)
    assert part.take(now=3.0) == [Ask()]
