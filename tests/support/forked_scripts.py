"""Runs the unchanged scripts of tests/scripts on several workers, and returns what they print.

The workers come from the fork server, which has imported torch; in them the runner becomes the script.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

from tests.support.workers import run_workers

SCRIPTS = Path(__file__).parents[1] / "scripts"


def run_script(size: int, folder: Path, name: str, *args: str, **environment: str) -> list[str]:
    """Return the stdout of each rank, in rank order."""
    command = [str(SCRIPTS / name), *args]
    texts: list[str] = run_workers(size, _become, folder, command, init=False, environment=environment)
    return texts


NO_RANKS = {"RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}


def run_alone(folder: Path, name: str, *args: str, **environment: str) -> str:
    """Return the stdout of a run without undertow; with `NO_RANKS`, also without a launcher's variables."""
    command = [str(SCRIPTS / name), *args]
    return str(run_workers(1, _run_natively, folder, command, init=False, environment=environment)[0])


def read_curve(text: str, word: str = "loss") -> list[float]:
    """Return the figures after this word, line by line."""
    return [float(figure) for figure in re.findall(rf"\b{word} ([-\d.]+)", text)]


def _become(rank: int, folder: Path, command: list[str]) -> str:
    from undertow.script.runner import run

    return _record(rank, folder, lambda: run(command, sys.modules))


def _run_natively(rank: int, folder: Path, command: list[str]) -> str:
    sys.argv = command
    return _record(rank, folder, lambda: runpy.run_path(command[0], run_name="__main__"))


def _record(rank: int, folder: Path, work: Any) -> str:
    """Return the whole stdout; held output is shown at the end of the process."""
    os.chdir(folder)
    multiprocessing.set_start_method("fork", force=True)  # as in a process that was not forked by a server
    path = folder / f"stdout-{rank}"
    sys.path.insert(0, "")
    with path.open("w") as stdout, contextlib.redirect_stdout(stdout):
        with contextlib.suppress(SystemExit):
            work()
        sys.stdout.flush()
        import undertow

        undertow.shutdown()
    return path.read_text()
