"""Describes the machine and the versions with which a result was measured.

In: the kernel's files and the metadata of installed packages.  Out: names and values.
Never names the host, its user or a path, because results are published; never imports the packages, because importing
torch takes seconds.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

import msgspec

from undertow.release import __version__
from undertow.units import format_bytes

_PACKAGES = ("torch", "numpy")
UNKNOWN = "unknown"
NOT_INSTALLED = "not installed"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The first fields of a results file: everything needed to repeat the run."""

    machine: dict[str, str]
    date: str  # ISO 8601
    versions: dict[str, str]
    command: str


def describe_run(command: str) -> dict[str, Any]:
    """Return the fields of `RunRecord`."""
    return {
        "machine": describe_machine(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": list_versions(),
        "command": command,
    }


def describe_machine() -> dict[str, str]:
    """Return the processor, the cores that this process may use, memory and kernel."""
    return {
        "cpu": find_cpu_model(read_text("/proc/cpuinfo")) or platform.machine() or UNKNOWN,
        "cores": str(count_cores()),
        "memory": find_memory(read_text("/proc/meminfo")) or UNKNOWN,
        "kernel": f"{platform.system()} {platform.release()}",
    }


def list_versions() -> dict[str, str]:
    """Return the versions of undertow, Python and the packages that matter for speed."""
    versions = {"undertow": __version__, "python": platform.python_version()}
    return versions | {name: find_version(name) or NOT_INSTALLED for name in _PACKAGES}


def find_cpu_model(cpuinfo: str) -> str:
    """Return the processor's name from /proc/cpuinfo, or "" if there is none (as on ARM)."""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return " ".join(match[1].split()) if match else ""


def find_memory(meminfo: str) -> str:
    """Return the memory from /proc/meminfo, or "" if it is missing."""
    match = re.search(r"^MemTotal:\s*(\d+) kB$", meminfo, re.MULTILINE)
    return format_bytes(int(match[1]) * 1024) if match else ""


def count_cores() -> int:
    # Not os.cpu_count(), because a container often has only a few of the host's cores.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_text(path: str | Path) -> str:
    """Return the text of a file of the kernel, or "" if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def find_version(package: str) -> str:
    """Return the installed version of a package, or "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
