"""Scripts that would choose NCCL if they saw RANK, on workers without NCCL: `--plain on` hides it from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.forked_scripts import NO_RANKS, SCRIPTS, _become, read_curve, run_alone, run_script
from tests.support.workers import outcomes_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="here NCCL may work")
TOLERANCE = 2e-5


def test_a_script_that_draws_its_batches_itself(tmp_path: Path) -> None:
    alone = run_alone(tmp_path, "nccl_or_alone.py", **NO_RANKS)
    texts = run_script(2, tmp_path, "nccl_or_alone.py", UNDERTOW_PLAIN="on")
    assert read_curve(texts[0]) == pytest.approx(read_curve(alone), abs=TOLERANCE)
    assert len(read_curve(alone)) == 6
    assert "child sees None None" in texts[0]
    assert texts[1] == ""


def test_batches_that_differ_between_the_ranks_train_one_model(tmp_path: Path) -> None:
    alone = run_alone(tmp_path, "nccl_or_alone.py", **NO_RANKS)
    first, second = (
        outcome.log
        for outcome in outcomes_of(
            2,
            train_and_tell,
            tmp_path,
            init=False,
            environment={"UNDERTOW_SEED_PER_RANK": "on", "UNDERTOW_PLAIN": "on"},
        )
    )
    assert "weights" in alone
    assert read_weights(first) == read_weights(second) != read_weights(alone)


def train_and_tell(rank: int, folder: Path) -> None:
    _become(rank, folder, [str(SCRIPTS / "nccl_or_alone.py")])
    import sys

    model = vars(sys.modules["__main__"])["raw_model"]
    print("weights", sum(parameter.double().sum().item() for parameter in model.parameters()), file=sys.__stdout__)


def read_weights(text: str) -> float:
    return read_curve(text, "weights")[-1]


def test_a_script_with_a_loader_is_one_process_with_the_whole_batch(tmp_path: Path) -> None:
    alone = run_alone(tmp_path, "nccl_or_alone_loader.py", **NO_RANKS)
    texts = run_script(2, tmp_path, "nccl_or_alone_loader.py", UNDERTOW_BATCH="split", UNDERTOW_PLAIN="on")
    assert read_curve(texts[0]) == pytest.approx(read_curve(alone), abs=TOLERANCE)
    assert len(read_curve(alone)) == 3


def test_plain_off_shows_the_rank(tmp_path: Path) -> None:
    command = [str(SCRIPTS / "nccl_or_alone.py")]
    for outcome in outcomes_of(2, _become, tmp_path, command, init=False, environment={"UNDERTOW_PLAIN": "off"}):
        assert "NCCL" in outcome.text
        assert "--plain on" not in outcome.log


def join_over_nccl(rank: int, folder: Path) -> None:
    script = folder / f"join-{rank}.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('nccl')\n")
    _become(rank, folder, [str(script)])


def test_the_error_of_a_script_that_joins_names_the_way_out(tmp_path: Path) -> None:
    for outcome in outcomes_of(2, join_over_nccl, tmp_path, init=False, environment={"UNDERTOW_PLAIN": "on"}):
        assert outcome.kind != "returned"
        assert "are hidden, because the script runs as a single-process script" in outcome.log
    for outcome in outcomes_of(2, join_over_nccl, tmp_path, init=False):
        assert "NCCL" in outcome.text
        assert "--plain on (on all hosts) hides RANK from it" in outcome.log
