"""Helpers for tests of `undertow share`: a private socket, and no arbiter left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.command import Cli, is_alive, wait_until
from undertow.crossover.arbiter import Arbiter
from undertow.crossover.messages import Status
from undertow.crossover.turns import LEASE_S


@contextmanager
def open_share(cli: Cli) -> Iterator[Path]:
    """Yield the path of a private socket; kill every arbiter that was started there."""
    path = cli.folder / "s.sock"
    cli.environment["UNDERTOW_SHARE_SOCKET"] = str(path)
    try:
        yield path
    finally:
        for pid in find_arbiters(path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not is_alive(pid))


class WatchedArbiter(Arbiter):
    """Arbiter in this process that counts how often its status is requested."""

    asked = 0

    def _describe(self, now: float) -> Status:
        self.asked += 1
        return super()._describe(now)


@contextmanager
def run_arbiter(path: Path, lease_s: float = LEASE_S) -> Iterator[WatchedArbiter]:
    arbiter = WatchedArbiter(path, lease_s)
    thread = threading.Thread(target=arbiter.run)
    thread.start()
    try:
        yield arbiter
    finally:
        arbiter.stop()
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.connect(str(path))  # interrupts its wait
        thread.join()


def find_arbiters(path: Path) -> list[int]:
    """Return the arbiters started at this socket that are still alive."""
    log = path.with_suffix(".log")
    pids = re.findall(r"process (\d+)", log.read_text()) if log.exists() else []
    return [pid for pid in map(int, pids) if str(path) in _read_command(pid)]


def _read_command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def write_job(cli: Cli, name: str, text: str) -> Path:
    path = cli.folder / f"{name}.toml"
    path.write_text(text)
    return path
