"""Under srun and mpirun no script trains N times alone: all entry points refuse, unless the user insists."""

from __future__ import annotations

import pytest

from tests.support.command import Cli

SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "4"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}

# With an argument it joins the others by itself, though they are not there in these tests.
SPEAKING = """
import sys, torch
local_rank = -1
print('started')
if sys.argv[1:]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group(sys.argv[1], store=store, rank=0, world_size=1)
weight = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
print('trained')
"""


def test_run_refuses_and_an_explicit_number_of_hosts_insists(cli: Cli) -> None:
    cli.environment |= SRUN
    script = cli.write("print('trained', os.environ['WORLD_SIZE'])\nimport undertow\nundertow.init()")
    result = cli.run("run", script)
    assert (result.returncode, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert "SLURM_STEP_NUM_TASKS=4" in line
    assert "undertow run --nnodes 4 --node-rank $SLURM_NODEID" in line
    # Its workers inherit the variables and must not be refused.
    result = cli.run("run", "--nnodes", 1, "-n", 2, "--quiet-ranks", script)
    assert (result.returncode, result.stdout) == (0, "trained 2\n")


def test_a_pod_that_counts_hosts_is_refused(cli: Cli) -> None:
    cli.environment |= {"RANK": "0", "WORLD_SIZE": "2"}
    result = cli.run("run", cli.write("print('trained')"))
    assert (result.returncode, result.stdout) == (2, "")
    assert "WORLD_SIZE=2" in result.stderr


def test_init_refuses_and_an_explicit_size_insists(cli: Cli) -> None:
    cli.environment |= MPIRUN
    script = cli.folder / "train.py"
    script.write_text("import undertow, sys\nundertow.init(**eval(sys.argv[1]))\nprint('trained')")
    result = cli.finish(cli.start_python(script, "{}"))
    assert (result.returncode, result.stdout) == (1, "")
    last = result.stderr.splitlines()[-1]
    assert "OMPI_COMM_WORLD_SIZE=2" in last
    assert "undertow run -n 2 train.py" in last
    assert cli.finish(cli.start_python(script, "{'world_size': 1}")).stdout == "trained\n"
    cli.environment["WORLD_SIZE"] = "1"
    assert cli.finish(cli.start_python(script, "{}")).stdout == "trained\n"


@pytest.mark.parametrize("way", ["python -m undertow", "autoload"])
def test_a_single_process_script_is_refused(cli: Cli, way: str) -> None:
    cli.environment |= MPIRUN
    script = cli.folder / "train.py"
    script.write_text("import torch\nprint('trained')")
    if way == "autoload":
        cli.environment["UNDERTOW_AUTOLOAD"] = "1"
    before = [] if way == "autoload" else ["-m", "undertow"]
    result = cli.finish(cli.start_python(*before, script))
    assert (result.returncode, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(
        "undertow: mpirun (Open MPI) started this process as one of several (OMPI_COMM_WORLD_SIZE=2)"
    )
    # A script that speaks of ranks may read them from the other launcher's variables, until it trains alone after all.
    script.write_text(SPEAKING)
    result = cli.finish(cli.start_python(*before, script))
    assert (result.returncode, result.stdout) == (1, "started\n")
    assert "OMPI_COMM_WORLD_SIZE=2" in result.stderr.splitlines()[-1]
    result = cli.finish(cli.start_python(*before, script, "gloo"))
    assert (result.returncode, result.stdout) == (0, "started\ntrained\n")


def test_a_script_for_horovod_is_refused(cli: Cli) -> None:
    cli.environment |= MPIRUN
    script = cli.folder / "train.py"
    script.write_text("import horovod.torch as hvd\nhvd.init()\nprint('trained')")
    result = cli.finish(cli.start_python("-m", "undertow", script))
    assert (result.returncode, result.stdout) == (1, "")
    assert "OMPI_COMM_WORLD_SIZE=2" in result.stderr
