"""Which scripts find the variables of their launcher."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from undertow import hidden
from undertow.errors import ConfigError
from undertow.script import visibility
from undertow.script.branches import needs_nccl
from undertow.script.visibility import Sight, decide_sight, has_nccl
from undertow.settings import PlainScripts, Settings, read_settings

NCCL = "dist.init_process_group(backend='nccl')  # or 'gloo'\n"
TESTS = (
    "ddp = int(os.environ.get('RANK', -1)) != -1",
    "ddp = int(os.getenv('RANK', '-1')) >= 0",
    "ddp = 'RANK' in os.environ",
    "if 'RANK' not in os.environ and 'WORLD_SIZE' not in os.environ: pass",
    "rank = os.environ.get('RANK')\nif rank is None: pass",
    "rank = getenv('LOCAL_RANK', default=None)",
    "rank = environ.get('LOCAL_RANK', '')",
    "distributed = int(os.environ.get('WORLD_SIZE', '1')) > 1",
)


def write(folder: Path, text: str) -> str:
    script = folder / "train.py"
    script.write_text(text)
    return str(script)


@pytest.mark.parametrize("test", TESTS)
def test_scripts_that_run_alone_without_a_rank_and_else_with_nccl_alone(test: str, tmp_path: Path) -> None:
    assert needs_nccl(write(tmp_path, f"{test}\n{NCCL}"), ["--device=cpu"])


@pytest.mark.parametrize(
    "text",
    [
        NCCL,  # needs a rank
        "rank = int(os.environ['RANK'])\n" + NCCL,
        "rank = int(os.environ.get('RANK', 0))\n" + NCCL,
        "rank = os.environ.get('RANK', find())\n" + NCCL,
        "name = os.environ.get('HOME')\n" + NCCL,
        TESTS[0] + "\ndist.init_process_group()\n",
        TESTS[0] + "\nbackend = 'nccl' if torch.cuda.is_available() else 'gloo'\n",
        TESTS[0] + "\nbackend = 'cpu:gloo,cuda:nccl'\n",
        TESTS[0] + "\n# nccl\n",
        TESTS[0] + "\n'nccl'\nthis is no Python\n",
        "",
    ],
)
def test_other_scripts(text: str, tmp_path: Path) -> None:
    assert not needs_nccl(write(tmp_path, text), [])


def test_a_backend_among_the_arguments_or_in_a_configuration_counts(tmp_path: Path) -> None:
    script = write(tmp_path, f"{TESTS[0]}\n{NCCL}")
    (tmp_path / "config.py").write_text("backend = 'gloo'\n")
    assert not needs_nccl(script, ["--backend=gloo"])
    assert not needs_nccl(script, [str(tmp_path / "config.py")])
    assert not needs_nccl(script, [f"--config={tmp_path / 'config.py'}"])
    assert needs_nccl(script, [str(tmp_path / "no-such.py"), "\0.py"])
    assert not needs_nccl(None, [])
    assert not needs_nccl(str(tmp_path / "no-such.py"), [])


def test_auto_hides_the_ranks_where_the_distributed_branch_cannot_run(tmp_path: Path) -> None:
    script, two = write(tmp_path, f"{TESTS[0]}\n{NCCL}"), {"world_size": 2, "local_world_size": 2}
    sight = decide_sight(Settings(**two), script, [], lambda: False)
    assert sight.is_hidden
    assert sight.words == (
        "train.py needs NCCL, which this host lacks: runs as a single-process script; --plain off shows it RANK"
    )
    assert decide_sight(Settings(**two), script, [], lambda: True) == Sight(False)
    assert decide_sight(Settings(plain=PlainScripts.OFF, **two), script, [], lambda: False) == Sight(False)
    other = write(tmp_path, "import torch")
    assert decide_sight(Settings(**two), other, [], lambda: False) == Sight(False)
    assert decide_sight(Settings(plain=PlainScripts.ON, **two), other, [], lambda: True) == Sight(True)


def test_hosts_that_may_differ_are_an_error_that_names_both_ways(tmp_path: Path) -> None:
    script = write(tmp_path, f"{TESTS[0]}\n{NCCL}")
    with pytest.raises(ConfigError, match=r"train.py needs NCCL, which this host lacks.* --plain on .* --plain off"):
        decide_sight(Settings(world_size=4, local_world_size=2), script, [], lambda: False)


def test_a_host_without_visible_devices_has_no_nccl() -> None:
    assert not has_nccl({"CUDA_VISIBLE_DEVICES": ""})
    assert not has_nccl({"CUDA_VISIBLE_DEVICES": "-1"})


def test_hidden_variables_are_undertows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "GROUP_RANK": "0", "MASTER_PORT": "29500"}
    for name in hidden.RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    hidden.hide()
    try:
        assert not set(hidden.RANKS) & set(os.environ)
        os.environ["RANK"] = "0"  # as a script does that wants a group of one process
        settings = read_settings()
        assert (settings.rank, settings.world_size, settings.master_port) == (1, 2, 29500)
    finally:
        hidden.show()
    assert {name: os.environ[name] for name in given} == given


@pytest.mark.parametrize(
    ("version", "is_built"), [("cuda: str | None = '13.0'", True), ("cuda = None\nhip = None", False)]
)
def test_what_torch_was_built_for_is_read_without_importing_it(
    version: str, is_built: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('not to be imported')")
    (tmp_path / "torch" / "version.py").write_text(version)
    (tmp_path / "driver").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(visibility, "_DRIVERS", (str(tmp_path / "driver"),))
    assert has_nccl({}) is is_built
    monkeypatch.setattr(visibility, "_DRIVERS", (str(tmp_path / "no driver"),))
    assert not has_nccl({})
