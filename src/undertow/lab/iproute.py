"""The tools `ip` and `tc` of iproute2, many commands per call.

In: command lines without the tool's name.  Out: nothing, or a `LabError` with the tool's words.
They act in the network namespace of the calling thread.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from undertow.errors import LabError

# Not always in an administrator's PATH (`su` without a dash).
_MORE_FOLDERS = ("/usr/sbin", "/sbin")


def find_tool(name: str) -> str | None:
    """Where the tool is, None if it is not installed."""
    folders = [*os.get_exec_path(), *_MORE_FOLDERS]
    return shutil.which(name, path=os.pathsep.join(folders))


def run_batch(name: str, lines: Sequence[str]) -> None:
    """All commands in one process: a start of it costs more than many of them."""
    tool = find_tool(name)
    if tool is None:
        raise LabError(f"{name} is not installed: get it with the package iproute2")
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run([tool, "-batch", "-"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise LabError(f"the emulated network cannot be set up: {name} says: {reason}")
