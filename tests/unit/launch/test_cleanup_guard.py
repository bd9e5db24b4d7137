"""The guard removes what the launcher leaves behind when the launcher is gone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from undertow.launch.cleanup_guard import CleanupGuard


def test_only_registered_folders_are_removed_with_the_launcher(tmp_path: Path) -> None:
    gone, stays, never = tmp_path / "gone", tmp_path / "stays", tmp_path / "was never there"
    for folder in (gone, stays):
        folder.mkdir()
        (folder / "socket").touch()
    with closing(CleanupGuard()) as guard:  # closes its stdin at the end, as when the launcher is killed
        guard.remove(gone)
        guard.remove(never)
        assert gone.exists()
    assert [folder.exists() for folder in (gone, stays, never)] == [False, True, False]


def test_a_launcher_is_ended_before_its_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with _start_launcher() as asked, _start_launcher() as forgotten:
        with closing(CleanupGuard()) as guard:
            guard.remove(folder)
            for launcher in (asked, forgotten):
                guard.watch_launcher(launcher.pid)
            guard.forget(forgotten.pid)
        assert asked.wait() == 3
        assert forgotten.poll() is None
        assert not folder.exists()


@contextmanager
def _start_launcher() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that ends with code 3 on SIGTERM."""
    script = "import signal, sys; signal.signal(15, lambda *_: sys.exit(3)); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()
