"""How these tests run the real command: a script written on the spot, a process, a hang guard."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HANG_S = 150.0  # nothing here takes this long, not on a loaded machine either: a hang must not block everybody

# What a test must not inherit from whoever runs it.
_OUTER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "NO_COLOR", "UNDERTOW_TOKEN")


class Cli:
    """`undertow` as a child process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {key: value for key, value in os.environ.items() if key not in _OUTER}
        self.started: list[subprocess.Popen[str]] = []

    def write(self, source: str, name: str = "script.py") -> Path:
        """Save a worker script; `folder`, `rank` and `wait_for` are there for it to use."""
        path = self.folder / name
        path.write_text(_PRELUDE.format(folder=str(self.folder)) + textwrap.dedent(source))
        return path

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        return self.start_python("-m", "undertow", *arguments, **options)

    def start_python(self, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, *map(str, arguments)]
        defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options = {**defaults, "text": True, "errors": "surrogateescape", "env": self.environment, **options}
        process = subprocess.Popen(command, **options)
        self.started.append(process)
        return process

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.finish(self.start(*arguments))

    def finish(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        out, err = process.communicate(timeout=HANG_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def wait_for_files(self, pattern: str, count: int) -> list[Path]:
        """Until the workers have written that many files: the way to know how far they are."""
        wait_until(lambda: len(list(self.folder.glob(pattern))) >= count)
        return sorted(self.folder.glob(pattern))


# `mark` writes under another name first, so that a file that is there is complete.
_PRELUDE = """\
import os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path({folder!r})
rank = int(os.environ["RANK"])

def mark(name, text=""):
    (folder / ("." + name)).write_text(str(text))
    (folder / ("." + name)).rename(folder / name)

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)

"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between open and read
        return False
    return state != "Z"


def find_imports(code: str) -> list[str]:
    """Return the modules of a fresh interpreter after this code."""
    code = f"import sys; {code}; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
