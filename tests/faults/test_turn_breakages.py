"""A policy, an arbiter or a worker that breaks a claim about jobs that share devices: the driver finds it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.breakages import Break, Patch, find_broken, wrap
from undertow.crossover import turn_state
from undertow.crossover.messages import Grant, NowAlone, Recall
from undertow.crossover.turn_state import TurnState
from undertow.crossover.turns import Account, Turns

# Who goes first


def place_by_the_latest_count(patch: Patch) -> None:
    """Use the latest count, which is not the same on all hosts."""
    patch.setattr(turn_state, "LAG", 0)


def serve_who_has_had_most(patch: Patch) -> None:
    patch.setattr(Account, "order_key", property(lambda self: (not self.terms.is_urgent, -self.key_s, self.terms.job)))


def serve_in_order_of_arrival(patch: Patch) -> None:
    def order_key(self: Account) -> tuple[bool, float, str]:
        return not self.terms.is_urgent, min(self.waiting.values(), default=0.0), self.terms.job

    patch.setattr(Account, "order_key", property(order_key))
    patch.setattr("undertow.crossover.turns._goes_before", lambda *_: False)


def forget_weights(patch: Patch) -> None:
    def make(real: Any) -> Any:
        def join(self: Turns, member: int, terms: Any, now: float) -> Any:
            return real(self, member, replace(terms, weight=1.0), now)

        return join

    wrap(patch, Turns, "join", make)


def know_no_urgency(patch: Patch) -> None:
    patch.setattr(Account, "order_key", property(lambda self: (False, self.key_s, self.terms.job)))


def recall_nobody(patch: Patch) -> None:
    patch.setattr("undertow.crossover.turns._goes_before", lambda *_: False)


def hear_no_recall(patch: Patch) -> None:
    wrap(
        patch,
        TurnState,
        "handle",
        lambda real: lambda self, message, now: [] if isinstance(message, Recall) else real(self, message, now),
    )


# Counts


def count_nothing(patch: Patch) -> None:
    patch.setattr(Turns, "_charge", lambda self, now: None)


def count_every_lift(patch: Patch) -> None:
    """Add the difference, which every host repeats in every turn, instead of raising the count."""

    def lift(self: Turns, member: int, to_s: float) -> None:
        account = self._account_of(member)
        account.virtual_s += max(0.0, to_s - account.key_s)

    patch.setattr(Turns, "lift", lift)


# One at a time


def let_everybody_in(patch: Patch) -> None:
    patch.setattr(Turns, "ask", lambda self, member, now, position=None: [(member, Grant())])


def let_one_in_too_many(patch: Patch) -> None:
    def make(real: Any) -> Any:
        def ask(self: Turns, member: int, now: float, position: Any = None) -> Any:
            answer = real(self, member, now, position)
            return answer if answer or self.turn is None or self.turn.is_recalled else [(member, Grant())]

        return ask

    wrap(patch, Turns, "ask", make)


def say_nothing_of_company(patch: Patch) -> None:
    wrap(patch, Turns, "join", lambda real: lambda self, *rest: real(self, *rest)[:0])


def start_with_a_free_turn(patch: Patch) -> None:
    """Take the turn from a job that was alone when another one comes."""

    def make(real: Any) -> Any:
        def join(self: Turns, *rest: Any) -> Any:
            told = real(self, *rest)
            self.turn = None
            return told

        return join

    wrap(patch, Turns, "join", make)


def believe_old_words(patch: Patch) -> None:
    wrap(patch, Turns, "ask", lambda real: lambda self, *rest: self._unsettled.clear() or real(self, *rest))


# Nobody is forgotten


def have_no_lease(patch: Patch) -> None:
    patch.setattr(Turns, "deadline_s", None)


def have_a_short_lease(patch: Patch) -> None:
    """Use a lease that is shorter than a step."""
    wrap(patch, Turns, "__init__", lambda real: lambda self, lease_s: real(self, 0.001))


def keep_the_turn_of_who_has_left(patch: Patch) -> None:
    def make(real: Any) -> Any:
        def leave(self: Turns, member: int, now: float) -> Any:
            turn = self.turn
            told = real(self, member, now)
            self.turn = turn or self.turn
            return told[:0]

        return leave

    wrap(patch, Turns, "leave", make)


def tell_nobody_who_is_left(patch: Patch) -> None:
    wrap(patch, Turns, "_free", lambda real: lambda self, now: real(self, now)[:0])


def grant_only_the_first_of_a_job(patch: Patch) -> None:
    wrap(patch, Turns, "_grant_all", lambda real: lambda self, *rest: list(real(self, *rest))[:1])


def decide_nothing_after_a_give(patch: Patch) -> None:
    patch.setattr(Turns, "give", lambda self, member, now: self._charge(now) or self._drop(member, now) or [])


def never_give_back(patch: Patch) -> None:
    def give(self: TurnState, now: float) -> list[Any]:
        self._stop(now)
        return []

    patch.setattr(TurnState, "give", give)


def wait_for_an_arbiter_that_is_gone(patch: Patch) -> None:
    patch.setattr(TurnState, "detach", lambda self, now: None)


def stay_alone_for_ever(patch: Patch) -> None:
    """Count as alone even after another job has come."""

    def make(real: Any) -> Any:
        def handle(self: TurnState, message: Any, now: float) -> Any:
            said = real(self, message, now)
            self.is_alone_for_good = getattr(self, "is_alone_for_good", False) or isinstance(message, NowAlone)
            if self.is_alone_for_good:
                self.mode = type(self.mode).ALONE
            return said

        return handle

    wrap(patch, TurnState, "handle", make)


@pytest.mark.parametrize(
    ("broken", "scenario", "claim"),
    [
        (serve_who_has_had_most, "turns-shares", "^shares: . has hardly begun"),
        (serve_in_order_of_arrival, "turns-shares", "^shares"),
        (forget_weights, "turns-shares", "^shares"),
        (recall_nobody, "turns-shares", "^shares"),
        (recall_nobody, "turns", "is urgent and has waited"),
        (know_no_urgency, "turns", "is urgent and has waited"),
        (hear_no_recall, "turns", "is urgent and has waited"),
        (count_nothing, "turns-shares", "^shares"),
        (let_everybody_in, "turns", "^two jobs compute at a time"),
        (let_one_in_too_many, "turns", "^two jobs compute at a time"),
        (say_nothing_of_company, "turns", "believes that"),
        (start_with_a_free_turn, "turns", "disagree on whether it has the turn"),
        (believe_old_words, "turns", "disagree on whether it waits"),
        (have_no_lease, "turns-killed", "^B should have ended"),
        (have_a_short_lease, "turns", "although none exceeded the lease"),
        (keep_the_turn_of_who_has_left, "turns-faults", "believes that|^a free turn"),
        (tell_nobody_who_is_left, "turns", "believes that"),
        (grant_only_the_first_of_a_job, "turns", "disagree on whether it waits"),
        (decide_nothing_after_a_give, "turns", "^a free turn"),
        (never_give_back, "turns", "disagree on whether it"),
        (wait_for_an_arbiter_that_is_gone, "turns-faults", "disagree on whether"),
        (stay_alone_for_ever, "turns", "believes that"),
        (place_by_the_latest_count, "turns-order", "disagree on its position"),
        (count_every_lift, "turns", "^the arbiter of host . counts"),
    ],
)
def test_the_driver_finds_it(monkeypatch: Patch, broken: Break, scenario: str, claim: str) -> None:
    broken(monkeypatch)
    outcome = find_broken(scenario, claim)
    told = outcome.explain()
    assert len(outcome.log) > 1
    assert told[-2:] == [f"broken: {outcome.broken}", f"replay: {outcome.replay}"]
