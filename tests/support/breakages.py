"""Ways to break the engine on purpose, and to find the first seed of the fault driver that notices it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from undertow.tools.faults.scenarios import find_scenario
from undertow.tools.faults.scenarios.seeds import Outcome, run_seed

SEEDS = 200  # most are found in the first few
Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]


def find_broken(scenario: str, claim: str) -> Outcome:
    """Return the first seed of this scenario that breaks this claim."""
    others = set()
    for seed in range(SEEDS):
        outcome = run_seed(seed, find_scenario(scenario))
        if re.search(claim, outcome.broken):
            return outcome
        others.add(outcome.broken)
    raise AssertionError(f"not found in {SEEDS} seeds: {claim!r}, but {others}")


def wrap(patch: Patch, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a method by `make(method)`."""
    patch.setattr(owner, name, make(getattr(owner, name)))
