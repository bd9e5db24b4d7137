"""What can happen to a cluster: one scenario per claim, of which a seed picks one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from undertow.errors import ConfigError
from undertow.faults.case import Case
from undertow.faults.scenarios.departures import run_early, run_endless, run_orderly
from undertow.faults.scenarios.disagreements import run_disagree
from undertow.faults.scenarios.discards import run_discards
from undertow.faults.scenarios.endings import run_ending, run_late_leaving
from undertow.faults.scenarios.gates import run_gates
from undertow.faults.scenarios.losses import run_cut, run_damaged, run_killed, run_slow, run_slow_goodbye, run_stopped
from undertow.faults.scenarios.nonsense import run_babble_and_death, run_nonsense, run_repeats
from undertow.faults.scenarios.restarts import run_restart
from undertow.faults.scenarios.schedules import run_credit, run_gathering, run_join, run_schedule
from undertow.faults.scenarios.starts import run_start_losses
from undertow.faults.scenarios.turn_order import run_turns_killed, run_turns_order, run_turns_shares
from undertow.faults.scenarios.turns import run_turns, run_turns_faults


@dataclass(frozen=True)
class Scenario:
    name: str
    weight: int  # how many of a hundred seeds, about
    run: Callable[[Case], None]  # raises `Broken`
    needs_torch: bool = False

    @property
    def claim(self) -> str:
        return (self.run.__doc__ or "").strip()


# A new one goes to the end: which scenario a seed picks is decided by the order.
SCENARIOS = [
    Scenario("schedule", 9, run_schedule),
    Scenario("credit", 7, run_credit),
    Scenario("gathering", 8, run_gathering),
    Scenario("join", 8, run_join),
    Scenario("gates", 4, run_gates, needs_torch=True),
    Scenario("orderly", 4, run_orderly),
    Scenario("early", 5, run_early),
    Scenario("endless", 8, run_endless),
    Scenario("killed", 12, run_killed),
    Scenario("cut", 6, run_cut),
    Scenario("stopped", 6, run_stopped),
    Scenario("slow", 6, run_slow),
    Scenario("nonsense", 5, run_nonsense),
    Scenario("nonsense-and-death", 4, run_babble_and_death),
    Scenario("repeats", 4, run_repeats),
    Scenario("restart", 5, run_restart),
    Scenario("disagree", 4, run_disagree),
    Scenario("slow-goodbye", 4, run_slow_goodbye),
    Scenario("turns", 5, run_turns),
    Scenario("turns-faults", 5, run_turns_faults),
    Scenario("turns-order", 4, run_turns_order),
    Scenario("turns-shares", 4, run_turns_shares),
    Scenario("turns-killed", 4, run_turns_killed),
    Scenario("ending", 5, run_ending),
    Scenario("late-leaving", 4, run_late_leaving),
    Scenario("start-losses", 5, run_start_losses),
    Scenario("damaged", 6, run_damaged),
    Scenario("discards", 5, run_discards),
]


def find_scenario(name: str) -> Scenario:
    for scenario in SCENARIOS:
        if scenario.name == name:
            return scenario
    known = ", ".join(scenario.name for scenario in SCENARIOS)
    raise ConfigError(f"there is no scenario {name!r}; there are {known}")
