"""The guard: what the launcher leaves behind is removed when the launcher is gone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from undertow.launch.guard import Guard


def test_folders_go_with_the_launcher_and_others_stay(tmp_path: Path) -> None:
    gone, stays, never = tmp_path / "gone", tmp_path / "stays", tmp_path / "was never there"
    for folder in (gone, stays):
        folder.mkdir()
        (folder / "socket").touch()
    with closing(Guard()) as guard:  # its stdin closes then, as when the launcher is killed
        guard.remove(gone)
        guard.remove(never)
        assert gone.exists()
    assert [folder.exists() for folder in (gone, stays, never)] == [False, True, False]
