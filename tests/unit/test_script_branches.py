"""Which scripts run as a single process where no launcher has set RANK."""

from __future__ import annotations

from pathlib import Path

import pytest

from undertow.script.branches import runs_alone


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
def test_a_script_that_tests_for_a_rank_has_a_branch_without(text: str, tmp_path: Path) -> None:
    assert runs_alone(write(tmp_path, text))


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
def test_other_scripts_need_one_or_never_look(text: str, tmp_path: Path) -> None:
    assert not runs_alone(write(tmp_path, text))


def test_a_script_that_cannot_be_read_has_none(tmp_path: Path) -> None:
    assert not runs_alone(None)
    assert not runs_alone(str(tmp_path / "no-such.py"))
    assert not runs_alone("<stdin>")


def test_what_python_warns_of_is_not_said_again(tmp_path: Path) -> None:
    assert runs_alone(write(tmp_path, "ddp = 'RANK' in os.environ\npattern = '\\d'\nassert (1, 'x')\n"))
