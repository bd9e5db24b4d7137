"""Scripts that can run as a single process are restarted with RANK hidden."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from undertow.script import restart
from undertow.script.restart import (
    find_caller,
    has_single_process_branch,
    needs_nccl,
    remember_start,
    should_restart,
)
from undertow.settings import PlainScripts, Settings

TWO: dict[str, Any] = {"world_size": 2, "local_world_size": 2}


@pytest.mark.parametrize(
    ("arguments", "options", "has_device", "needs"),
    [
        (["nccl"], {}, False, True),
        ([], {"backend": "NCCL"}, False, True),
        (["nccl"], {}, True, False),
        (["gloo"], {}, False, False),
        (["cpu:gloo,cuda:nccl"], {}, False, False),  # works without a device
        ([], {"init_method": "env://"}, False, False),
        ([None], {}, False, False),
    ],
)
def test_calls_that_need_nccl_are_found(
    arguments: list[Any], options: dict[str, Any], has_device: bool, needs: bool
) -> None:
    assert needs_nccl(arguments, options, has_device=has_device) is needs


def test_a_script_restarts_if_it_or_its_helper_can_run_alone(tmp_path: Path) -> None:
    able, unable = tmp_path / "able.py", tmp_path / "unable.py"
    able.write_text("ddp = 'RANK' in os.environ\n")
    unable.write_text("rank = os.environ['RANK']\n")
    settings = Settings(**TWO)
    assert should_restart(settings, [str(able), str(unable)])
    assert should_restart(settings, [str(unable), str(able)])
    assert not should_restart(settings, [str(unable), None])


@pytest.mark.parametrize(
    "given",
    [
        {"plain": PlainScripts.OFF, **TWO},
        {"plain": PlainScripts.ON, **TWO},  # RANK is already hidden from it, and it still failed
        {"world_size": 4, "local_world_size": 2},  # the other host may have NCCL
        {},
    ],
)
def test_explicit_settings_and_several_hosts_prevent_a_restart(given: dict[str, Any], tmp_path: Path) -> None:
    able = tmp_path / "able.py"
    able.write_text("ddp = 'RANK' in os.environ\n")
    assert not should_restart(Settings(**given), [str(able)])


def test_the_caller_is_the_innermost_file_outside_torch_and_undertow() -> None:
    inner: dict[str, Any] = {"__name__": "torch.distributed", "find_caller": find_caller}
    exec(compile("def call(): return find_caller()", "torch.py", "exec"), inner)
    assert inner["call"]() == __file__


def test_the_process_restarts_with_its_original_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "train.py", "--lr", "1"])
    monkeypatch.setenv("KEPT", "1")
    start_again = remember_start()
    monkeypatch.setenv("MADE_BY_THE_SCRIPT", "1")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    begun: list[Any] = []
    monkeypatch.setattr(restart.os, "execve", lambda *given: begun.append((os.getcwd(), *given)))
    start_again()
    [(folder, program, command, environment)] = begun
    assert (folder, program) == (str(tmp_path), sys.executable)
    assert command == [sys.executable, "-u", "train.py", "--lr", "1"]
    assert (environment["UNDERTOW_PLAIN"], environment["KEPT"]) == ("on", "1")
    assert "MADE_BY_THE_SCRIPT" not in environment


def write(folder: Path, text: str) -> str:
    script = folder / "train.py"
    script.write_text(text)
    return str(script)


@pytest.mark.parametrize(
    "text",
    [
        "ddp = int(os.environ.get('RANK', -1)) != -1",
        "ddp = int(os.getenv('RANK', '-1')) >= 0",
        "ddp = 'RANK' in os.environ",
        "if 'RANK' not in os.environ and 'WORLD_SIZE' not in os.environ: pass",
        "rank = os.environ.get('RANK')\nif rank is None: pass",
        "rank = getenv('LOCAL_RANK', default=None)",
        "rank = environ.get('LOCAL_RANK', '')",
        "distributed = int(os.environ.get('WORLD_SIZE', '1')) > 1",
    ],
)
def test_a_script_that_tests_for_a_rank_has_a_single_process_branch(text: str, tmp_path: Path) -> None:
    assert has_single_process_branch(write(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rank = int(os.environ['RANK'])",
        "rank = int(os.environ.get('RANK', 0))",
        "rank = os.environ.get('RANK', find())",
        "name = os.environ.get('HOME')",
        "# ddp = 'RANK' in os.environ",
        "ddp = 'RANK' in os.environ\nthis is no Python",
    ],
)
def test_other_scripts_have_no_single_process_branch(text: str, tmp_path: Path) -> None:
    assert not has_single_process_branch(write(tmp_path, text))


def test_an_unreadable_script_has_no_single_process_branch(tmp_path: Path) -> None:
    assert not has_single_process_branch(None)
    assert not has_single_process_branch(str(tmp_path / "no-such.py"))
    assert not has_single_process_branch("<stdin>")


def test_pythons_syntax_warnings_are_not_repeated(tmp_path: Path) -> None:
    assert has_single_process_branch(write(tmp_path, "ddp = 'RANK' in os.environ\npattern = '\\d'\nassert (1, 'x')\n"))
