"""Torch as a child process sees it: a broken install shows only when it is imported.

In: what is installed.  Out: a `Torch`.  The child is killed when its time is over, or the doctor's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import msgspec

from undertow.core.decoding import Decoder, Format
from undertow.doctor.facts import Package, Torch
from undertow.errors import Garbled

PROBE = Path(__file__).with_name("torch_probe.py")
LIMIT_S = 90.0  # from a cold network file system torch may take half a minute
LONGEST_REASON = 300


class _Answer(msgspec.Struct):
    threads: int
    devices: list[str]
    build: str


_answers: Decoder[_Answer] = Decoder(_Answer, format=Format.JSON)


class TorchChild:
    """Starts at once, so that other facts can be collected meanwhile; `with` it, then `wait`."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> TorchChild:
        if self._package.found:
            # -P: not with a torch.py of the current folder.  Without our variables: they are judged elsewhere.
            environ = {name: value for name, value in os.environ.items() if not name.startswith("UNDERTOW_")}
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(PROBE)],
                env=environ,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is None:
            return
        self._child.kill()
        self._child.communicate()

    def wait(self, limit_s: float) -> Torch:
        """Raises `subprocess.TimeoutExpired` if it takes longer."""
        if self._child is None:
            return Torch(self._package, "it is not installed")
        out, err = self._child.communicate(timeout=limit_s)
        return read_answer(self._package, self._child.returncode, out, err)


def read_answer(package: Package, code: int, out: str, err: str) -> Torch:
    """What the child's words mean."""
    lines = out.strip().splitlines()
    if code == 0 and lines:
        try:
            answer = _answers.decode(lines[-1].encode())
        except Garbled as error:
            return Torch(package, f"the child that imports it says nonsense ({error})")
        return Torch(package, "", answer.threads, answer.devices, answer.build)
    reason = next((line.strip() for line in reversed(err.splitlines()) if line.strip()), "it said nothing")
    if code < 0:
        reason = f"importing it ends with {signal.Signals(-code).name}"
    return Torch(package, reason[:LONGEST_REASON])
