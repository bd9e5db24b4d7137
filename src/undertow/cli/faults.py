"""`undertow faults`: runs seeds of the fault driver, and prints the events of a seed that breaks a claim."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from undertow import bounds
from undertow.cli.errors import FAILED_RUN, one_line_errors
from undertow.cli.options import Debug, option
from undertow.cli.progress import open_progress
from undertow.errors import ConfigError
from undertow.tools.faults.scenarios import SCENARIOS, Scenario, find_scenario
from undertow.tools.faults.scenarios.seeds import Outcome, run_seed

SEEDS = 2000


_Scenario = Annotated[
    str | None,
    option("--scenario NAME", "Run only this scenario; --list shows their names. Default: chosen by each seed."),
]
_Story = Annotated[bool, option("--story", "Print all events, with --seed, even if no claim is broken.")]


def faults(
    seeds: Annotated[int, option("--seeds N", "Run N seeds.", bounds=bounds.SEEDS)] = SEEDS,
    first: Annotated[int, option("--first SEED", "Start with this seed.", bounds=bounds.SEED)] = 0,
    seed: Annotated[int | None, option("--seed SEED", "Run only this seed again.", bounds=bounds.SEED)] = None,
    scenario: _Scenario = None,
    story: _Story = False,
    wants_list: Annotated[bool, option("--list", "List the scenarios and their claims.")] = False,
    debug: Debug = False,
) -> int:
    """Inject faults into the engine in memory, thousands of times, and check every sum.

    The real engine of up to five workers runs in one thread; a seed decides which messages and workers are delayed,
    killed, stopped, disconnected, repeated or corrupted. Nothing is installed, opened or changed.

    Example: undertow faults --seeds 20000

    Example: undertow faults --seed 1234 --story
    """
    with one_line_errors("undertow faults", debug=debug):
        if wants_list:
            return _show_list()
        chosen = find_scenario(scenario) if scenario else None
        if seed is not None:
            return _replay(run_seed(seed, chosen), whole=story)
        if story:
            raise ConfigError("--story prints the events of one seed: give it with --seed")
        return _run_all(range(first, first + seeds), chosen)


def _run_all(seeds: range, scenario: Scenario | None) -> int:
    """Run seeds until one breaks a claim."""
    done: Counter[str] = Counter()
    skipped: dict[str, str] = {}
    with open_progress() as progress:
        progress.expect(len(seeds))
        for seed in seeds:
            progress.say(f"running {len(seeds)} seeds: {seed}")
            outcome = run_seed(seed, scenario)
            if outcome.broken:
                break
            if outcome.skipped:
                skipped[outcome.scenario.name] = outcome.skipped
            else:
                done[outcome.scenario.name] += 1
            progress.advance()
    if outcome.broken:
        return _show(outcome, whole=False)
    for name, reason in skipped.items():
        print(f"{name} was skipped: {reason}")
    print(f"{done.total()} seeds, {seeds[0]} to {seeds[-1]}: everything held")
    print(", ".join(f"{one.name} {done[one.name]}" for one in SCENARIOS if done[one.name]))
    return 0


def _replay(outcome: Outcome, *, whole: bool) -> int:
    if outcome.broken or whole:
        code = _show(outcome, whole=whole)
        if code:
            return code
    if outcome.skipped:
        print(f"seed {outcome.seed}, {outcome.scenario.name}, was skipped: {outcome.skipped}")
    else:
        events = len(outcome.log)
        print(f"seed {outcome.seed}, {outcome.scenario.name}, {events} events: everything held")
    return 0


def _show(outcome: Outcome, *, whole: bool) -> int:
    print("\n".join(outcome.explain(whole=whole)))
    return FAILED_RUN if outcome.broken else 0


def _show_list() -> int:
    width = max(len(one.name) for one in SCENARIOS)
    for one in SCENARIOS:
        print(f"{one.name:<{width}}  {one.claim}")
    return 0
