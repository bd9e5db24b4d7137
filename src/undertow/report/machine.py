"""What a result was taken on: the machine and the versions, as words for a report.

In: the kernel's files and the metadata of installed packages.  Out: name and value.
Never names the host, its user or a path, because results are published; never imports
the packages, because a report must not take as long as torch.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path

import undertow

_PACKAGES = ("torch", "numpy")
UNKNOWN = "unknown"
NOT_INSTALLED = "not installed"


def describe_machine() -> dict[str, str]:
    """Processor, cores that this process may use, memory and kernel."""
    return {
        "cpu": find_cpu_model(_read("/proc/cpuinfo")) or platform.machine() or UNKNOWN,
        "cores": str(_count_cores()),
        "memory": find_memory(_read("/proc/meminfo")) or UNKNOWN,
        "kernel": f"{platform.system()} {platform.release()}",
    }


def list_versions() -> dict[str, str]:
    """Versions of undertow, Python and the packages that decide about speed."""
    versions = {"undertow": undertow.__version__, "python": platform.python_version()}
    return versions | {name: _find_version(name) for name in _PACKAGES}


def find_cpu_model(cpuinfo: str) -> str:
    """The processor's name in /proc/cpuinfo, empty if it has none (as on ARM)."""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return " ".join(match[1].split()) if match else ""


def find_memory(meminfo: str) -> str:
    """The memory of /proc/meminfo in GB (10^9 bytes), empty if it is not there."""
    match = re.search(r"^MemTotal:\s*(\d+) kB$", meminfo, re.MULTILINE)
    return f"{int(match[1]) * 1024 / 1e9:.1f} GB" if match else ""


def _count_cores() -> int:
    # Not os.cpu_count(): a container is often given a few of the host's cores.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _find_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED
