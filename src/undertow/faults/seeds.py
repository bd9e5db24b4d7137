"""From a seed to a run: the seed picks the scenario and everything in it, the same on every machine.

In: a seed, and a scenario if it is not the seed's to pick.  Out: an outcome, with the story of the run.
"""

from __future__ import annotations

import importlib.util
import random
import traceback
from dataclasses import dataclass

from undertow.faults.case import Case
from undertow.faults.scenarios import SCENARIOS, Scenario
from undertow.faults.story import Broken, Story, listening


@dataclass(frozen=True)
class Outcome:
    seed: int
    scenario: Scenario
    story: Story
    broken: str = ""  # the claim that did not hold
    skipped: str = ""  # why nothing was run
    is_forced: bool = False  # the seed would have picked another scenario

    @property
    def replay(self) -> str:
        """The command that runs this again."""
        return f"undertow faults --seed {self.seed}" + (f" --scenario {self.scenario.name}" if self.is_forced else "")

    def explain(self, *, whole: bool = False) -> list[str]:
        """What broke, how it came to that, and how to see it again."""
        lines = [f"seed {self.seed}, {self.scenario.name}: {self.broken}"] if self.broken else []
        lines += self.story.lines() if whole else self.story.last_lines()
        return [*lines, f"broken: {self.broken}", f"replay: {self.replay}"] if self.broken else lines


def run_seed(seed: int, scenario: Scenario | None = None) -> Outcome:
    """Never raises what is the run's own fault: the outcome says what broke."""
    dice = random.Random(seed)
    picked = dice.choices(SCENARIOS, [one.weight for one in SCENARIOS])[0]
    chosen = scenario or picked
    case, is_forced = Case(seed, dice), chosen is not picked
    if chosen.needs_torch and importlib.util.find_spec("torch") is None:
        return Outcome(seed, chosen, case.story, skipped="torch is not installed", is_forced=is_forced)
    return Outcome(seed, chosen, case.story, _run(chosen, case), is_forced=is_forced)


def _run(scenario: Scenario, case: Case) -> str:
    """The claim that did not hold, if any."""
    with listening(case.story):
        try:
            scenario.run(case)
        except Broken as broken:
            return broken.claim
        except Exception as error:  # a defect that no worker's engine could keep: it is news all the same
            case.story.tell(traceback.format_exc().rstrip())
            return f"something else was raised: {type(error).__name__}: {error}"
    return ""
