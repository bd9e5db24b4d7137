"""Scripts written for torchrun and DistributedDataParallel, unchanged, under `undertow run`."""

from __future__ import annotations

import pytest

from tests.support.script_runs import Runs

CLASSIC, ACCUMULATION, BRANCHES = "ddp_classic.py", "ddp_accumulation.py", "ddp_branches.py"
ALL = pytest.mark.parametrize("script", [CLASSIC, ACCUMULATION, BRANCHES])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def test_one_worker_is_one_process(runs: Runs) -> None:
    alone = runs.run_alone(CLASSIC)
    assert runs.run(CLASSIC, "-n", 1).lines == alone.lines
    assert alone.traces == []


@ALL
@pytest.mark.parametrize("workers", [2, 4])
def test_the_loss_curve_is_that_of_one_worker(script: str, workers: int, runs: Runs) -> None:
    alone = runs.fork(script, 1).curve
    together = runs.run(script, "-n", 2) if workers == 2 else runs.fork(script, workers)
    # What batch normalisation keeps is of rank 0's batches: of fewer, the more ranks there are.
    count = len(alone) - (script == ACCUMULATION)
    assert count >= 3
    assert together.curve[:count] == pytest.approx(alone[:count], abs=1e-5)
    hooks = together.count("hook")
    assert len(hooks) == workers
    assert all(hooks)


@ALL
def test_every_digit_is_that_of_torchs_own_wrapper(script: str, runs: Runs) -> None:
    # The sum of two numbers has the same bits in any order, and half of it too.
    theirs = runs.run_over_torch(script, "-n", 2)
    assert theirs.traces == []
    assert runs.run(script, "-n", 2).lines == theirs.lines


@ALL
def test_overlap_changes_no_digit(script: str, runs: Runs) -> None:
    waiting = runs.run(script, "-n", 2)
    overlapped = (
        runs.run(script, "-n", 2, "--overlap") if script == BRANCHES else runs.fork(script, 2, UNDERTOW_OVERLAP="on")
    )
    assert overlapped.lines == waiting.lines
    assert waiting.count_deferred() == [0, 0]
    if script == ACCUMULATION:  # who clips gradients needs all of them before the step
        assert overlapped.count_deferred() == [0, 0]
    else:
        assert all(overlapped.count_deferred())
