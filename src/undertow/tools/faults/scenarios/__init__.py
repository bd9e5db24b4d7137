"""Scenarios of the fault driver, one for each claim; a seed picks one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from undertow.errors import ConfigError
from undertow.plain_text import capitalise
from undertow.tools.faults.event_log import Case
from undertow.tools.faults.scenarios import (
    departures,
    disagreements,
    discards,
    gates,
    losses,
    nonsense,
    schedules,
    starts,
    turns,
)


@dataclass(frozen=True)
class Scenario:
    """Scenario and the claim that it checks."""

    name: str
    weight: int  # its share of the seeds, in proportion
    run: Callable[[Case], None]  # raises `Broken`
    needs_torch: bool = False

    @property
    def claim(self) -> str:
        return capitalise((self.run.__doc__ or "").strip().removeprefix("Check that "))


# Which scenario a seed picks depends on this order.
SCENARIOS = [
    Scenario("schedule", 9, schedules.run_schedule),
    Scenario("credit", 7, schedules.run_credit),
    Scenario("gathering", 8, schedules.run_gathering),
    Scenario("join", 8, schedules.run_join),
    Scenario("gates", 4, gates.run_gates, needs_torch=True),
    Scenario("orderly", 4, departures.run_orderly),
    Scenario("early", 5, departures.run_early),
    Scenario("endless", 8, departures.run_endless),
    Scenario("killed", 12, losses.run_killed),
    Scenario("cut", 6, losses.run_cut),
    Scenario("stopped", 6, losses.run_stopped),
    Scenario("slow", 6, losses.run_slow),
    Scenario("nonsense", 5, nonsense.run_nonsense),
    Scenario("nonsense-and-death", 4, nonsense.run_nonsense_and_death),
    Scenario("repeats", 4, nonsense.run_repeats),
    Scenario("restart", 5, nonsense.run_restart),
    Scenario("disagree", 4, disagreements.run_disagree),
    Scenario("slow-goodbye", 4, losses.run_slow_goodbye),
    Scenario("turns", 5, turns.run_turns),
    Scenario("turns-faults", 5, turns.run_turns_faults),
    Scenario("turns-order", 4, turns.run_turns_order),
    Scenario("turns-shares", 4, turns.run_turns_shares),
    Scenario("turns-killed", 4, turns.run_turns_killed),
    Scenario("ending", 5, departures.run_ending),
    Scenario("late-leaving", 4, departures.run_late_leaving),
    Scenario("start-losses", 5, starts.run_start_losses),
    Scenario("damaged", 6, losses.run_damaged),
    Scenario("discards", 5, discards.run_discards),
]


def find_scenario(name: str) -> Scenario:
    for scenario in SCENARIOS:
        if scenario.name == name:
            return scenario
    known = ", ".join(scenario.name for scenario in SCENARIOS)
    raise ConfigError(f"there is no scenario {name!r}; there are {known}")
