"""Ranks of a single-process script make the same folder at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from undertow.script import folders as module
from undertow.script.patches import SINGLE_PROCESS_PATCHES, AppliedPatches
from undertow.script.single_process import SingleProcessScript
from undertow.settings import Settings


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[SingleProcessScript]:
    """A script that is trained on two ranks."""
    script, patches = SingleProcessScript(Settings(rank=0, world_size=2)), AppliedPatches()
    monkeypatch.setattr(script, "_group", object())
    patches.apply(SINGLE_PROCESS_PATCHES, script)
    yield script
    patches.undo()


# Lambdas, so that the patched functions are called.
ASKING: dict[str, Callable[[Path], bool]] = {
    "os.path.exists": lambda path: os.path.exists(path),
    "os.path.isdir": lambda path: os.path.isdir(path),
    "Path.exists": lambda path: path.exists(),
    "Path.is_dir": lambda path: path.is_dir(),
}
MAKING: dict[str, Callable[[Path], None]] = {
    "os.mkdir": lambda path: os.mkdir(path),
    "os.makedirs": lambda path: os.makedirs(str(path)),
    "Path.mkdir": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("ask", ASKING)
@pytest.mark.parametrize("make", MAKING)
def test_a_folder_that_another_rank_creates_first_is_not_an_error(
    ask: str, make: str, script: SingleProcessScript, tmp_path: Path
) -> None:
    folder = tmp_path / "epoch-1"
    for _ in range(2):
        assert not ASKING[ask](folder)
        other_rank_makes(folder)
        MAKING[make](folder)
        assert folder.is_dir()
        folder.rmdir()


def other_rank_makes(folder: Path) -> None:
    os.mkdir.__wrapped__(folder)  # type: ignore[attr-defined]


def test_an_existing_folder_is_otherwise_an_error(script: SingleProcessScript, tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    assert not folder.exists()
    os.mkdir(folder)
    with pytest.raises(FileExistsError):  # its own
        os.mkdir(folder)
    assert folder.exists()
    assert not os.path.isfile(folder)
    with pytest.raises(FileExistsError):  # no check has found it absent
        folder.mkdir()
    assert not file.exists()
    file.write_text("")
    with pytest.raises(FileExistsError):
        os.mkdir(file)


def test_the_number_of_remembered_paths_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "MOST_ABSENT", 1)
    folders = module.Folders()
    for name in ("first", "second"):
        folders.note_absent(tmp_path / name)
        os.mkdir(tmp_path / name)
    folders.make(os.mkdir, tmp_path / "second")
    with pytest.raises(FileExistsError):
        folders.make(os.mkdir, tmp_path / "first")
    folders.note_absent(3)


def test_a_script_that_is_left_alone_gets_the_usual_errors(
    script: SingleProcessScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may know of other ranks, and use a folder as a lock."""
    monkeypatch.setattr(script, "_group", None)
    assert not os.path.exists(tmp_path / "lock")
    other_rank_makes(tmp_path / "lock")
    with pytest.raises(FileExistsError):
        os.mkdir(tmp_path / "lock")
