"""2,000 seeds of the fault driver; `undertow faults --seeds N` runs more."""

from __future__ import annotations

import pytest

from undertow.tools.faults.scenarios.seeds import run_seed

SEEDS, CHUNK = 2000, 100


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_claim_holds_whatever_happens(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_seed(seed)
        assert not outcome.broken, "\n".join(outcome.explain())
        assert not outcome.skipped
