"""`scripts/horovod-suite`, on a checkout with a few tests in the place of Horovod's own."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import Cli, is_alive

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


HANGING = """
import unittest
import horovod.torch as hvd

class TorchTests(unittest.TestCase):
    def test_first(self):
        hvd.init()
        hvd.barrier()

    def test_second(self):
        import os, pathlib, time
        pathlib.Path({folder!r}, f"pid-{{os.getpid()}}").touch()
        time.sleep(1000)
"""


def test_tests_that_do_not_end_are_ended(cli: Cli, tmp_path: Path) -> None:
    write_suite(tmp_path, HANGING.format(folder=str(tmp_path)))
    started = cli.start_python(COMMAND, tmp_path, "--limit", 20)
    pids = [int(file.name.removeprefix("pid-")) for file in cli.wait_for_files("pid-*", 2)]
    result = cli.finish(started)
    assert not any(map(is_alive, pids))
    assert result.stdout.splitlines() == [
        "passed  test_first",
        "1 tests on 2 workers: 1 passed, 0 skipped, 0 failed",
        "rank 0 was running test_second",
        "rank 1 was running test_second",
    ]
    assert "the tests did not finish within 20 s" in result.stderr
    assert result.returncode == 1


def write_suite(folder: Path, text: str) -> None:
    suite = folder / "test" / "parallel" / "test_torch.py"
    suite.parent.mkdir(parents=True)
    suite.write_text(text)


def test_the_outcome_of_each_test_is_shown(cli: Cli, tmp_path: Path) -> None:
    write_suite(tmp_path, SUITE)
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
    assert "give the folder of a Horovod checkout" in result.stderr
