"""`scripts/horovod-suite`, on a checkout with a few tests in the place of Horovod's own."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import Cli

COMMAND = Path(__file__).parents[2] / "scripts" / "horovod-suite"

SUITE = """
import unittest
import horovod.torch as hvd
import torch

class TorchTests(unittest.TestCase):
    def test_sum(self):
        hvd.init()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2

    def test_that_fails_on_one_worker(self):
        hvd.init()
        assert hvd.rank() == 0, "not the first"

    def test_gpu(self):
        self.skipTest("No GPUs available")
"""


def test_the_outcome_of_each_test_is_shown(cli: Cli, tmp_path: Path) -> None:
    suite = tmp_path / "test" / "parallel" / "test_torch.py"
    suite.parent.mkdir(parents=True)
    suite.write_text(SUITE)
    result = cli.finish(cli.start_python(COMMAND, tmp_path))
    lines = result.stdout.splitlines()
    assert sorted(line.partition(": ")[0] for line in lines[:3]) == [
        "failed  test_that_fails_on_one_worker",
        "passed  test_sum",
        "skipped test_gpu",
    ]
    assert lines[3] == "3 tests on 2 workers: 1 passed, 1 skipped, 1 failed"
    assert "not the first" in result.stdout
    assert "No GPUs available" in result.stdout
    assert result.returncode == 1


def test_a_folder_that_is_no_checkout_is_refused(cli: Cli, tmp_path: Path) -> None:
    result = cli.finish(cli.start_python(COMMAND, tmp_path))
    assert result.returncode == 2
    assert "give the folder of a checkout of Horovod" in result.stderr
