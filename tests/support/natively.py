"""Runs a command line with Python alone and as an undertow worker: a user must see the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.command import HANG_S
from undertow.launch.job import RUNNER

_OUTER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NO_COLOR", "PYTHONPATH", "PYTHONUNBUFFERED")
# A rank of a job that has no other worker: enough for a script that never trains.
SECOND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script and its command line."""

    script: str | bytes = ""
    code: int = 0  # Python's exit code, to find cases that fail for another reason
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    words: tuple[str, ...] = ("script.py",)
    start_in: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)
    typed: bytes = b""
    arrange: Callable[[Path], object] = lambda folder: None

    def write(self, folder: Path) -> None:
        for name, text in {"script.py": self.script, **self.files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        self.arrange(folder)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def run_ours(case: Case, folder: Path) -> Outcome:
    """Run the case with undertow only."""
    return _finish(*_start(case, folder / "undertow", RUNNER), case)


def run_both(case: Case, folder: Path, runner: tuple[str, ...] = RUNNER) -> tuple[Outcome, Outcome]:
    """Run the case with Python and with undertow at the same time, each in its own folder."""
    started = [_start(case, folder / "python", ()), _start(case, folder / "undertow", runner)]
    native, ours = [_finish(process, path, case) for process, path in started]
    return native, ours


def check_same(case: Case, folder: Path, runner: tuple[str, ...] = RUNNER) -> Outcome:
    native, ours = run_both(case, folder, runner)
    assert ours == native
    assert native.code == case.code, native
    return native


def _start(case: Case, folder: Path, runner: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], Path]:
    folder.mkdir()
    case.write(folder)
    environment = {name: value for name, value in os.environ.items() if name not in _OUTER} | {**case.environment}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, *runner, *(word.replace("FOLDER", str(folder)) for word in case.words)]
    return subprocess.Popen(command, cwd=folder / case.start_in, env=environment, **pipes), folder


def _finish(process: subprocess.Popen[bytes], folder: Path, case: Case) -> Outcome:
    try:
        out, err = process.communicate(case.typed, timeout=HANG_S)
    finally:
        process.kill()
    return Outcome(process.returncode, _tidy(out, folder), _tidy(err, folder))


def _tidy(data: bytes, folder: Path) -> str:
    """Decode the output, without what differs from run to run."""
    text = data.decode(errors="backslashreplace").replace(str(folder), "FOLDER")
    return re.sub(r"\b0x[0-9a-f]+", "0x", text)
