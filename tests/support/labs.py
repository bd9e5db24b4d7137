"""Helpers to run code in a lab, and to find what it left behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import Cli, is_alive
from undertow.tools.lab.isolation import find_obstacle, run_isolated
from undertow.tools.lab.network import Network, open_network

OBSTACLE = find_obstacle()
needs_lab = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

MARK = "UNDERTOW_TEST_MARK"


def in_lab(hosts: int, body: Callable[[Network], None]) -> None:
    """Run the body among emulated hosts; its failure is in the test's captured stderr."""

    def work() -> int:
        with open_network(hosts) as network:
            body(network)
        return 0

    assert run_isolated(work) == 0


def mark_processes(cli: Cli) -> None:
    """Mark every process that the command will start, at any depth, so that `find_marked` finds it."""
    cli.environment[MARK] = str(cli.folder)


def find_marked(cli: Cli) -> list[int]:
    """Return the living descendants of the command, in whatever namespace."""
    mark = f"{MARK}={cli.folder}".encode()
    return [pid for pid in _list_pids() if is_alive(pid) and mark in _read(f"/proc/{pid}/environ").split(b"\0")]


def find_children(pid: int) -> list[int]:
    return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]


def count_threads(pid: int) -> int:
    status = _read(f"/proc/{pid}/status").decode()
    return int(status.partition("Threads:")[2].split()[0]) if status else 0


def find_traces() -> set[str]:
    """Return whatever a lab could leave on the machine: links, named namespaces, mounts."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    names = {line.split(": ")[1].partition("@")[0] for line in links.splitlines()}
    named = set(os.listdir("/run/netns")) if Path("/run/netns").is_dir() else set()
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return names | named | mounts


def _list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""  # it has just ended
