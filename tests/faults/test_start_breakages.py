"""Launchers that break a claim about losses before the workers have met: the driver finds them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.breakages import Break, Patch, find_broken, wrap
from undertow.launch import host_watch, supervisor
from undertow.launch.host_watch import EndWorkers, HostWatch, Lost
from undertow.runtime.launcher_notes import Mark


def pass_nothing_on(patch: Patch) -> None:
    def make(real: Any) -> Any:
        def handle_message(self: HostWatch, *arguments: Any) -> Any:
            return [each for each in real(self, *arguments) if isinstance(each, EndWorkers)]

        return handle_message

    wrap(patch, HostWatch, "handle_message", make)


def blame_the_host_that_tells(patch: Patch) -> None:
    def make(real: Any) -> Any:
        def handle_message(self: HostWatch, host: int, message: Any, now_s: float) -> Any:
            told = (
                Lost(f"the launcher on host {self._hosts[host].name} (it told)")
                if message.__class__ is Lost
                else message
            )
            return real(self, host, told, now_s)

        return handle_message

    wrap(patch, HostWatch, "handle_message", make)


def wait_too_long_for_a_sign_of_life(patch: Patch) -> None:
    patch.setattr(host_watch, "SILENCE_S", 16.0)


def wait_too_long_for_a_stopped_worker(patch: Patch) -> None:
    patch.setattr(supervisor, "STUCK_CHECKS", 16)


def forgive_no_time_in_which_it_was_stopped_itself(patch: Patch) -> None:
    def make(real: Any) -> Any:
        def tick(self: HostWatch, now_s: float) -> Any:
            self._ticked_s = now_s
            return real(self, now_s)

        return tick

    wrap(patch, HostWatch, "tick", make)


def take_the_end_of_a_connection_for_a_goodbye(patch: Patch) -> None:
    patch.setattr(HostWatch, "note_closed", lambda self, host: [])


def tell_no_one_that_the_workers_have_met(patch: Patch) -> None:
    wrap(patch, HostWatch, "note_met", lambda real: lambda self: real(self) and [])


def never_notice_that_the_workers_have_met(patch: Patch) -> None:
    patch.setattr(HostWatch, "note_met", lambda self: [])


def end_what_stands_still_although_no_worker_waits(patch: Patch) -> None:
    patch.setattr(HostWatch, "_is_awaited", lambda self, mark, **kwargs: mark is Mark.WAITS)


def pass_on_no_waits(patch: Patch) -> None:
    wrap(
        patch,
        HostWatch,
        "_find_wait",
        lambda real: lambda self, **kwargs: Mark.NONE if "except_rank" not in kwargs else real(self, **kwargs),
    )


def forget_who_ended_in_order(patch: Patch) -> None:
    patch.setattr(HostWatch, "note_left", lambda self, rank, *, source=None: [])


def wait_too_long_for_a_launcher_that_never_connects(patch: Patch) -> None:
    patch.setattr(host_watch, "ARRIVE_S", 8.0)


@pytest.mark.parametrize(
    ("broken", "claim"),
    [
        (pass_nothing_on, "needs inf s, not 5, to name rank"),
        (blame_the_host_that_tells, "does not name the"),
        (wait_too_long_for_a_sign_of_life, "not 15, to name launcher"),
        (wait_too_long_for_a_stopped_worker, "not 15, to name rank"),
        (forgive_no_time_in_which_it_was_stopped_itself, "ended its workers without a reason: .* no sign of life"),
        (take_the_end_of_a_connection_for_a_goodbye, "not 5, to name launcher"),
        (tell_no_one_that_the_workers_have_met, "ended its workers without a reason"),
        (never_notice_that_the_workers_have_met, "not all launchers know"),
        (end_what_stands_still_although_no_worker_waits, "ended its workers without a reason: .* no sign of life"),
        (end_what_stands_still_although_no_worker_waits, "ended its workers without a reason: .* was stopped"),
        (pass_on_no_waits, "not 15, to name rank"),
        (forget_who_ended_in_order, "not 5, to name rank"),
        (wait_too_long_for_a_launcher_that_never_connects, "not 5, to name launcher"),
    ],
)
def test_the_driver_finds_it(monkeypatch: Patch, broken: Break, claim: str) -> None:
    broken(monkeypatch)
    outcome = find_broken("start-losses", claim)
    assert len(outcome.log) > 1
    assert outcome.explain()[-1] == f"replay: {outcome.replay}"
