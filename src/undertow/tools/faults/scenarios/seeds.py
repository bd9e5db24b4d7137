"""Runs of seeds: a seed picks the scenario and everything in it, the same on every machine.

In: a seed, and a scenario if the seed shall not pick one.  Out: an outcome, with the event log of the run.
"""

from __future__ import annotations

import importlib.util
import random
import traceback
from dataclasses import dataclass

from undertow.tools.faults.event_log import Broken, Case, EventLog, captured_logging
from undertow.tools.faults.scenarios import SCENARIOS, Scenario


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run, with the events that led to it."""

    seed: int
    scenario: Scenario
    log: EventLog
    broken: str = ""  # the claim that did not hold
    skipped: str = ""  # why nothing was run
    is_forced: bool = False  # the seed would have picked another scenario

    @property
    def replay(self) -> str:
        """Command that runs this again."""
        return f"undertow faults --seed {self.seed}" + (f" --scenario {self.scenario.name}" if self.is_forced else "")

    def explain(self, *, whole: bool = False) -> list[str]:
        """Return the claim that did not hold, the events, and the command that repeats the run."""
        lines = [f"seed {self.seed}, {self.scenario.name}: {self.broken}"] if self.broken else []
        lines += self.log.lines() if whole else self.log.last_lines()
        return [*lines, f"broken: {self.broken}", f"replay: {self.replay}"] if self.broken else lines


def run_seed(seed: int, scenario: Scenario | None = None) -> Outcome:
    """Run one seed.  Never raises an error of the run: the outcome has it."""
    dice = random.Random(seed)
    picked = dice.choices(SCENARIOS, [one.weight for one in SCENARIOS])[0]
    chosen = scenario or picked
    case, is_forced = Case(seed, dice), chosen is not picked
    if chosen.needs_torch and importlib.util.find_spec("torch") is None:
        return Outcome(seed, chosen, case.log, skipped="torch is not installed", is_forced=is_forced)
    return Outcome(seed, chosen, case.log, _run(chosen, case), is_forced=is_forced)


def _run(scenario: Scenario, case: Case) -> str:
    """Return the claim that did not hold, or an empty string."""
    with captured_logging(case.log):
        try:
            scenario.run(case)
        except Broken as broken:
            return broken.claim
        except Exception as error:  # a defect outside the workers' engines
            case.log.note(traceback.format_exc().rstrip())
            return f"something else was raised: {type(error).__name__}: {error}"
    return ""
