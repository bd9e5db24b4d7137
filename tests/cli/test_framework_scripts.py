"""Scripts for frameworks above DistributedDataParallel, unchanged, under `undertow run`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.script_runs import Runs


@pytest.mark.parametrize("framework", ["accelerate", "lightning", "transformers"])
def test_a_framework_trains_over_our_engine(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not imported here: that takes seconds, and the workers do so in a moment.
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    script, runs = f"framework_{framework}.py", Runs(tmp_path)
    ours, theirs = runs.run(script, "-n", 2), runs.run_over_torch(script, "-n", 2)
    assert len(ours.curve) >= 3
    assert ours.curve == theirs.curve
    assert len(ours.count("hook")) == 2
    assert all(ours.count("hook"))
    assert theirs.traces == []
