"""A script that ends without shutdown, in a real interpreter: other workers still get all they need from it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from tests.support.planned_training import LIMITS, USED
from tests.support.script_runs import free_port
from tests.support.workers import HANG_S

# Rank 1's script ends before rank 0 has begun its last step.  Its handler of atexit runs before undertow's own, and
# after Python has ended all executors.
SCRIPT = """
    import atexit, pathlib, sys, time
    import torch
    from torch import nn
    import undertow, undertow.torch

    folder, plan, steps = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if plan == "allreduce":
        torch.distributed.init_process_group("gloo")
    undertow.init()
    rank = undertow.rank()
    model, _ = undertow.torch.parallelize(net, optimizer, plan=plan)
    if rank == 1:
        atexit.register((folder / "ended").touch)

    def train(batch):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    for step in range(steps):
        train(torch.randn(8, 64, generator=torch.Generator().manual_seed(step)))
    if rank == 0:
        while not (folder / "ended").exists():
            time.sleep(0.01)
    train(torch.ones(8, 64))
    if rank == 0:
        torch.save(net.state_dict(), folder / "weights.pt")
"""


@pytest.mark.parametrize("plan", ["factors-to-shard", "allreduce"])
def test_an_ended_script_still_contributes_to_the_last_checkpoint(plan: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    workers = [_start(script, plan, rank) for rank in _ranks_at_free_port(3)]
    try:
        errors = [worker.communicate(timeout=HANG_S)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0, 0], "\n".join(errors)
    assert not any("Error" in error for error in errors), "\n".join(errors)
    expected = _train_alone()
    for name, weight in torch.load(tmp_path / "weights.pt").items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-6)


def _ranks_at_free_port(size: int) -> list[dict[str, str]]:
    place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **LIMITS}
    return [{**place, "RANK": str(rank)} for rank in range(size)]


def _start(script: Path, plan: str, place: dict[str, str]) -> subprocess.Popen[str]:
    environment = {**os.environ, **place, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(script), str(script.parent), plan, str(USED)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def _train_alone() -> dict[str, torch.Tensor]:
    """Train in one process: all ranks see the same batches, so their mean gradient is that of one process."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = [torch.randn(8, 64, generator=torch.Generator().manual_seed(step)) for step in range(USED)]
    for batch in [*batches, torch.ones(8, 64)]:
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
    return net.state_dict()
