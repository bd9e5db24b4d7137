"""Scripts that ask for NCCL on a host without it: trained as single-process scripts, if they can be one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.command import Cli
from tests.support.forked_scripts import NO_RANKS, read_curve, run_alone
from tests.support.script_runs import SCRIPTS, TORCHRUN, Runs

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="here NCCL may work")
RESTARTED = "requests NCCL, which this host lacks: restarting it as a single-process script (--plain off keeps"
JOIN = """
import os

import torch.distributed as dist

# Set by careful people everywhere; not what decides.
os.environ.setdefault("NCCL_DEBUG", "WARN")


def join(backend):
    if "RANK" not in os.environ:
        return 0, 1
    dist.init_process_group(backend)
    return dist.get_rank(), dist.get_world_size()
"""
TRAIN = """
import sys

import torch
from join import join

print("begins", flush=True)
place = join(sys.argv[1])
model = torch.nn.Linear(2, 1)
if place[1] > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print("trained as", *place, flush=True)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("launcher", [("-m", "undertow", "run", "-n", 2), (*TORCHRUN, 2, "-m", "undertow")])
def test_it_trains_as_one_process_does(launcher: tuple[object, ...], runs: Runs, tmp_path: Path) -> None:
    alone = read_curve(run_alone(tmp_path, "nccl_or_alone.py", **NO_RANKS))
    together = runs.run_python(*launcher, SCRIPTS / "nccl_or_alone.py")
    assert together.curve == pytest.approx(alone, abs=2e-5)
    assert len(alone) == 6
    assert "child sees None None" in "\n".join(together.lines)


def start(cli: Cli, *arguments: object) -> tuple[int, list[str], str]:
    (cli.folder / "join.py").write_text(JOIN)
    (cli.folder / "train.py").write_text(TRAIN)
    ended = cli.run("run", "-n", 2, *arguments[:-1], cli.folder / "train.py", arguments[-1])
    return ended.returncode, sorted(ended.stdout.splitlines()), ended.stderr


def test_a_helper_in_another_file_may_be_the_one_that_decides(cli: Cli) -> None:
    code, lines, told = start(cli, "nccl")
    assert code == 0, told
    assert told.count(RESTARTED) == 1
    assert [line for line in lines if "trained as" in line] == ["[rank 0] trained as 0 1"]


def test_another_backend_is_left_alone_whatever_the_text_says(cli: Cli) -> None:
    code, lines, told = start(cli, "gloo")
    assert code == 0, told
    assert RESTARTED not in told
    assert [line for line in lines if "trained as" in line] == ["[rank 0] trained as 0 2", "[rank 1] trained as 1 2"]


def test_plain_off_shows_the_rank_and_torchs_own_error(cli: Cli) -> None:
    code, lines, told = start(cli, "--plain", "off", "nccl")
    assert code == 1
    assert "NCCL" in told
    assert not any("trained" in line for line in lines)
