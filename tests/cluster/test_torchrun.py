"""The same scripts under plain torchrun: the addresses travel through its own store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LONG_S = 120.0  # several interpreters import torch on a small machine; only a hang takes longer

TRAIN = """
    torch.manual_seed(undertow_rank)
    model = undertow.torch.DistributedDataParallel(torch.nn.Linear(2, 1))
    for step in range(3):
        model.zero_grad()
        model(torch.full((1, 2), float(undertow_rank + step))).sum().backward()
        assert (model.module.weight.grad == 0.5 + step).all()
    # Into files: lines of two workers get mixed in one pipe.
    open(f"digest-{undertow_rank}", "w").write(undertow.torch.verify_replicas(model))
"""

INIT = """
    import torch, undertow, undertow.torch
    undertow.init()
    undertow_rank = undertow.rank()
    assert undertow.world_size() == undertow.local_world_size() == 2
    assert undertow.local_rank() == undertow_rank
"""

GROUP = """
    import torch, torch.distributed, undertow, undertow.torch
    torch.distributed.init_process_group("gloo")
    undertow_rank = torch.distributed.get_rank()
    assert not undertow.is_initialized()
"""

# Up to the process group a script that knows undertow alone; such a one trains in RESTART.
BOTH = (
    INIT
    + """
    torch.distributed.init_process_group("gloo")
"""
)

# The first attempt of rank 1 dies half-way; torchrun starts everyone again, with the same store.
RESTART = (
    """
    import os, sys
    import torch, undertow, undertow.torch
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt == 0 and os.environ["RANK"] == "1":
        sys.exit("of the test")
"""
    + INIT
    + """
    assert attempt == 1
    assert not torch.distributed.is_initialized()
"""
)


def run_torchrun(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text("\n".join(textwrap.dedent(part) for part in (source, TRAIN)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, str(script)],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LONG_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.parametrize("source", [GROUP, BOTH, RESTART], ids=["process group", "both", "init, with a restart"])
def test_a_script_runs_under_torchrun(source: str, tmp_path: Path) -> None:
    options = ["--max-restarts", "1"] if source is RESTART else []
    result = run_torchrun(tmp_path, source, *options)
    assert result.returncode == 0, result.stderr
    digests = [path.read_text() for path in tmp_path.glob("digest-*")]
    assert len(digests) == 2
    assert digests[0] == digests[1] != ""
