"""A rank other than 0 writes no checkpoints, but reads what it would have written."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from undertow.script import checkpoints as module
from undertow.script.checkpoints import LEAST_KEPT, Checkpoints
from undertow.script.patches import SINGLE_PROCESS_PATCHES, AppliedPatches
from undertow.script.replacements import save_by_handler
from undertow.script.single_process import SingleProcessScript
from undertow.settings import Settings


def save(thing: object, f: Any, ending: str = "") -> None:
    """Save like torch.save, to a path or an open file."""
    data = f"{thing}{ending}".encode()
    if hasattr(f, "write"):
        f.write(data)
    else:
        Path(f).write_bytes(data)


def read(f: Any) -> bytes:
    data: bytes = f.read() if hasattr(f, "read") else Path(f).read_bytes()
    return data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.pt"


def test_no_file_is_written_and_the_ranks_own_copy_is_read(path: Path) -> None:
    files = Checkpoints()
    files.save(save, "weights", path, ending="!")
    assert not path.exists()
    assert read(files.find(path)) == b"weights!"
    assert read(files.find(path)) == b"weights!"  # twice


def test_the_last_checkpoint_replaces_earlier_ones(path: Path) -> None:
    files = Checkpoints()
    files.save(save, "old", path)
    files.save(save, "new", path)
    assert read(files.find(path)) == b"new"


def test_a_checkpoint_is_found_by_any_name_of_its_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Checkpoints()
    files.save(save, "weights", path)
    (path.parent / "link.pt").symlink_to(path)
    monkeypatch.chdir(path.parent)
    for name in (str(path), path.name, f"./{path.name}", path.parent / "link.pt"):
        assert read(files.find(name)) == b"weights"


def test_files_that_were_not_saved_here_are_read_from_disk(path: Path) -> None:
    path.write_bytes(b"of an earlier run")
    assert Checkpoints().find(path) is path
    stream = io.BytesIO(b"x")
    assert Checkpoints().find(stream) is stream


def test_only_the_last_few_large_checkpoints_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT_BYTES", 1)
    files = Checkpoints()
    names = [f"{path}.{number}" for number in range(LEAST_KEPT + 1)]
    for name in names:
        files.save(save, name, name)
    files.save(save, "again", names[1])
    files.save(save, "one more", f"{path}.more")
    assert files.find(names[0]) is names[0]
    assert read(files.find(names[1])) == b"again"
    assert read(files.find(f"{path}.more")) == b"one more"


def test_objects_that_are_not_paths_are_written_as_usual() -> None:
    files = Checkpoints()
    memory = io.BytesIO()
    files.save(save, "weights", memory)
    assert memory.getvalue() == b"weights"


def test_a_file_that_the_script_has_opened_is_written_by_every_rank(path: Path) -> None:
    with open(path, "wb") as file:
        Checkpoints().save(save, "weights", file)
    assert os.path.getsize(path) == len("weights")


def test_an_object_that_cannot_be_saved_fails_on_every_rank(path: Path) -> None:
    def refuse(thing: object, f: Any) -> None:
        raise TypeError("cannot pickle")

    files = Checkpoints()
    with pytest.raises(TypeError, match="cannot pickle"):
        files.save(refuse, "x", path)
    assert files.find(path) is path


def test_kept_copies_are_written_if_every_rank_writes_its_own(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = Checkpoints()
    for number in range(5):
        files.save(save, f"weights {number}", f"{path}.{number}")
    files.save(save, "newest", f"{path}.0")
    files.rename(os.rename, f"{path}.1", path)
    files.remove(os.remove, f"{path}.2")
    files.write(1)
    found = {file.name.removeprefix(path.name): file.read_text() for file in path.parent.iterdir()}
    assert found == {"": "weights 1", ".0": "newest", ".3": "weights 3", ".4": "weights 4"}
    assert capsys.readouterr().err == ""
    assert files.find(path) is path


def test_lost_copies_are_named(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "MOST_KEPT_BYTES", 1)
    files = Checkpoints()
    for number in range(LEAST_KEPT + 1):
        files.save(save, "weights", f"{path}.{number}")
    files.rename(os.rename, f"{path}.0", path)
    files.write(1)
    assert f"rank 1 has lost what it saved to {path}: " in capsys.readouterr().err
    assert len(list(path.parent.iterdir())) == LEAST_KEPT


@pytest.mark.parametrize("copy", [shutil.copyfile, shutil.copy, shutil.copy2])
def test_only_rank_0_copies_a_checkpoint(path: Path, copy: Callable[..., Any]) -> None:
    files, best = Checkpoints(), path.parent / "best.pt"
    files.save(save, "weights", path)
    assert files.copy(copy, path, best) == best
    files.save(save, "worse", path)
    assert read(files.find(best)) == b"weights"
    assert os.listdir(path.parent) == []


def test_a_copy_into_a_folder_keeps_its_name(path: Path) -> None:
    files, folder = Checkpoints(), path.parent / "best"
    folder.mkdir()
    files.save(save, "weights", path)
    assert files.copy(shutil.copy, path, str(folder)) == f"{folder}/{path.name}"
    assert read(files.find(folder / path.name)) == b"weights"
    assert os.listdir(folder) == []


def test_other_files_are_copied_by_every_rank(path: Path) -> None:
    path.write_bytes(b"configuration")
    assert Checkpoints().copy(shutil.copyfile, path, f"{path}.copy") == f"{path}.copy"
    assert Path(f"{path}.copy").read_bytes() == b"configuration"


def test_a_lost_copy_of_a_checkpoint_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "MOST_KEPT_BYTES", 1)
    files = Checkpoints()
    for number in range(LEAST_KEPT + 1):
        files.save(save, "weights", f"{path}.{number}")
    files.copy(shutil.copyfile, f"{path}.0", path)
    files.write(1)
    assert f"rank 1 has lost what it saved to {path}.0, {path}: " in capsys.readouterr().err


def test_a_checkpoint_exists_until_it_is_removed_or_renamed(path: Path) -> None:
    """This holds even if rank 0 has not written it yet, or has a disk of its own."""
    files, other = Checkpoints(), f"{path}.other"
    assert not files.has(path)
    files.save(save, "weights", path)
    assert files.has(path)
    assert files.has(str(path))
    files.rename(os.rename, path, other)
    assert not files.has(path)
    assert files.has(other)
    files.remove(os.remove, other)
    assert not files.has(other)
    assert not files.has(3)


def test_a_script_finds_and_copies_what_it_has_saved(path: Path) -> None:
    """It does so as on rank 0; a best checkpoint is a copy, and its existence is checked before it is read."""
    script, patches = SingleProcessScript(Settings(rank=1, world_size=2)), AppliedPatches()
    script.checkpoints.save(save, "weights", path)
    patches.apply(SINGLE_PROCESS_PATCHES, script)
    try:
        shutil.copy(path, path.parent / "best.pt")
        shutil.move(path.parent / "best.pt", path.parent / "last.pt")
        names = [path.parent / name for name in ("checkpoint.pt", "best.pt", "last.pt")]
        found = [[is_there(name) for name in names] for is_there in (os.path.exists, os.path.isfile)]
        sizes = [os.path.getsize(names[0]), os.path.getsize(__file__)]
        found += [[name.exists() for name in names], [name.is_file() for name in names]]
    finally:
        patches.undo()
    assert found == [[True, False, True]] * 4
    assert sizes == [len("weights"), os.path.getsize(__file__)]
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize(("rank", "names"), [(0, ["best.pt"]), (1, [])])
def test_a_saver_that_renames_its_own_file_leaves_it_to_rank_0(rank: int, names: list[str], tmp_path: Path) -> None:
    """ignite's DiskSaver creates a temporary file, which it opens itself."""

    def write(saver: Any, checkpoint: Any, path: Path, func: Callable[..., None]) -> None:
        with open(f"{path}.tmp", "wb") as file:
            func(checkpoint, file, **saver.kwargs)
        os.replace(f"{path}.tmp", path)

    script = SimpleNamespace(writes=rank == 0, checkpoints=Checkpoints())
    save_by_handler(write, script)(SimpleNamespace(kwargs={}), [1, 2], tmp_path / "best.pt", torch.save)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == names
    assert torch.load(script.checkpoints.find(tmp_path / "best.pt")) == [1, 2]


def test_renamed_checkpoints_do_not_displace_the_best_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write `last.pt` in every epoch, and `best.pt` long before."""
    monkeypatch.setattr(module, "MOST_KEPT_BYTES", 1)
    files = Checkpoints()
    for name in ("best", "last", "last"):
        files.save(save, name, f"{path}.tmp")
        files.rename(os.replace, f"{path}.tmp", f"{path}.{name}")
    files.save(save, "newer", f"{path}.tmp")
    assert read(files.find(f"{path}.best")) == b"best"
    files.rename(os.replace, f"{path}.tmp", f"{path}.last")
    files.save(save, "other", f"{path}.other")
    files.save(save, "another", f"{path}.another")
    assert read(files.find(f"{path}.last")) == b"newer"  # renamed later than the best was saved
    assert not isinstance(files.find(f"{path}.best"), io.BytesIO)


def test_sizes_of_other_files_need_no_path_lookup(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts read the sizes of a million samples."""
    monkeypatch.setattr(module, "_find_path", lambda f: pytest.fail("looked up"))
    assert Checkpoints().measure(path) is None


def test_a_thread_may_save_while_kept_copies_are_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint may be saved in the background."""
    files, written = Checkpoints(), []

    def replace(name: str, data: bytes) -> None:
        written.append(name)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(files.save, save, "more", f"{path}.more").result()

    monkeypatch.setattr(module, "write_whole", replace)
    names = [f"{path}.{number}" for number in range(2)]
    for name in names:
        files.save(save, "weights", name)
    files.write(1)
    assert written == names
    assert files.has(f"{path}.more")
