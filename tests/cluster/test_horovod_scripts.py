"""Scripts written for Horovod run unchanged, and give the same on many workers as on one."""

from __future__ import annotations

from pathlib import Path

import pytest

import undertow.horovod
from tests.support.forked_scripts import run_script
from tests.support.workers import outcomes_of, start_workers


def final_loss(script: str, workers: int, folder: Path) -> float:
    first, *others = run_script(workers, folder, script)
    assert not any(others)  # only the first rank prints
    words = first.splitlines()[-1].split()
    assert words[:2] == ["final", "loss"]
    return float(words[2])


@pytest.mark.parametrize(
    ("script", "tolerance", "good"),
    [
        ("horovod_classic.py", 1e-5, 0.5),
        ("horovod_accumulation.py", 5e-2, 1.2),  # the script requests 16 bits; 1.5e-2 was seen
        ("horovod_uneven.py", 1e-5, 0.8),
    ],
)
def test_a_script_gives_the_same_on_any_number_of_workers(
    script: str, tolerance: float, good: float, tmp_path: Path
) -> None:
    alone = final_loss(script, 1, tmp_path)
    assert alone < good
    for workers in (2, 4):
        assert final_loss(script, workers, tmp_path) == pytest.approx(alone, rel=tolerance)


def fail_in_the_middle(rank: int) -> None:
    undertow.horovod.install()
    import horovod.torch as hvd
    import torch

    hvd.init()
    hvd.allreduce(torch.ones(3), name="x")
    if rank == 1:
        raise KeyError("a defect of the script")
    hvd.allreduce(torch.ones(3), name="y")


def test_a_worker_that_fails_is_named_by_the_others() -> None:
    first, second, third = outcomes_of(3, fail_in_the_middle, init=False)
    assert second.kind == "KeyError"
    for other in (first, third):
        assert other.kind == "WorkerLost"
        assert "rank 1" in other.text
        assert "its script failed with KeyError: 'a defect of the script'" in other.text


def leave_early(rank: int) -> None:
    undertow.horovod.install()
    import horovod.torch as hvd
    import torch

    hvd.init()
    if rank != 2:
        hvd.allreduce(torch.ones(3), name="x")


def test_a_worker_that_ends_early_is_named_by_workers_that_wait_for_its_call() -> None:
    for outcome in outcomes_of(3, leave_early, init=False)[:2]:
        assert outcome.kind == "WorkerLost"
        assert "rank 2" in outcome.text
        assert "its script has ended while others still train" in outcome.text


def only_join(rank: int) -> None:
    undertow.horovod.install()
    import horovod.torch as hvd

    hvd.init()


def test_a_worker_that_never_joins_is_named_in_a_horovod_error() -> None:
    crew = start_workers(2, only_join, init=False, ranks=[0], environment={"UNDERTOW_START_TIMEOUT": "0.5"})
    (outcome,) = crew.outcomes()
    assert outcome.kind == "WorkerLost"
    assert "rank 1" in outcome.text
