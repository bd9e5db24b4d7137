"""Scripts that know nothing of undertow, unchanged, under torchrun instead of `undertow run`."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.script_runs import SCRIPTS, TORCHRUN, Run, Runs

DDP, PLAIN = "ddp_branches.py", "plain_digits.py"

# What an installed undertow has.
ENTRY_POINTS = "[torch.backends]\nundertow = undertow.autoload:load\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undertow is known to torch, also where its tests run without an installation."""
    if not any(point.name == "undertow" for point in importlib.metadata.entry_points(group="torch.backends")):
        description = tmp_path / "undertow_autoload-0.dist-info"
        description.mkdir()
        (description / "METADATA").write_text("Metadata-Version: 2.1\nName: undertow-autoload\nVersion: 0\n")
        (description / "entry_points.txt").write_text(ENTRY_POINTS)
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])


def check_trains_over_our_engine(run: Run, alone: Run) -> None:
    assert len(alone.curve) >= 3
    assert run.curve == pytest.approx(alone.curve, abs=1e-5)
    assert len(run.count("hook")) == 2
    assert all(run.count("hook"))


def test_a_script_for_ddp_by_our_module(runs: Runs) -> None:
    run = runs.run_python(*TORCHRUN, 2, "-m", "undertow", SCRIPTS / DDP, "--steps", 40)
    check_trains_over_our_engine(run, runs.fork_alone(DDP))


def test_a_script_for_one_process_by_our_module(runs: Runs) -> None:
    run = runs.run_python(*TORCHRUN, 2, "-m", "undertow", SCRIPTS / PLAIN, UNDERTOW_BATCH="split")
    check_trains_over_our_engine(run, runs.fork_alone(PLAIN))


@pytest.mark.usefixtures("installed")
def test_a_script_for_ddp_by_a_variable(runs: Runs) -> None:
    run = runs.run_python(*TORCHRUN, 2, SCRIPTS / DDP, UNDERTOW_AUTOLOAD="1")
    check_trains_over_our_engine(run, runs.fork_alone(DDP))


AGENT = """
    import json, sys
    from torch.distributed.run import main
    main(["--standalone", "--nproc-per-node", "1", {worker!r}])
    json.dump(list(sys.modules), open("agent.json", "w"))
"""

# A child that is started before anything has been prepared, and one afterwards.
WORKER = """
    import json, multiprocessing, subprocess, sys

    def tell(name):
        import torch
        json.dump(list(sys.modules), open(name, "w"))

    if __name__ == "__main__":
        child = multiprocessing.get_context("spawn").Process(target=tell, args=["child.json"])
        child.start()
        child.join()
        tell("worker.json")
        source = "import torch, json, sys; json.dump(list(sys.modules), open('subprocess.json', 'w'))"
        subprocess.run([sys.executable, "-c", source], check=True)
"""


def is_prepared(modules: Path) -> bool:
    return "undertow.script.preparation" in json.loads(modules.read_text())


@pytest.mark.usefixtures("installed")
def test_the_variable_prepares_workers_and_nobody_else(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(textwrap.dedent(WORKER))
    source = textwrap.dedent(AGENT).format(worker=str(tmp_path / "worker.py"))
    run = runs.run_python("-c", source, UNDERTOW_AUTOLOAD="1")
    prepared = {path.stem: is_prepared(path) for path in run.folder.glob("*.json")}
    assert prepared == {"agent": False, "worker": True, "child": False, "subprocess": False}


@pytest.mark.usefixtures("installed")
def test_without_the_variable_nothing_is_imported(runs: Runs, tmp_path: Path) -> None:
    source = "import torch, sys; print(*[name for name in sys.modules if name.startswith('undertow.script')])"
    run = runs.run_python("-c", source + "; print('undertow.autoload' in sys.modules)", RANK="0", WORLD_SIZE="1")
    assert run.lines == ["", "True"]
