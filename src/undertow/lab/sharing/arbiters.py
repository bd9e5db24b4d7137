"""Arbiters for emulated hosts: one process each, as `undertow share up` starts on a real one.

In: how many hosts.  Out: for each of them the variables that bring a worker to its arbiter.
Their sockets are in a private folder, where no arbiter of the user's own is met.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from undertow.crossover.contact import ask_status
from undertow.crossover.turns import LEASE_S
from undertow.errors import LabError

START_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.02
FAREWELL_S = 5.0

Environments = Sequence[Mapping[str, str]]


@contextmanager
def open_arbiters(hosts: int, environ: Mapping[str, str]) -> Iterator[Environments]:
    """Inside of the block there is one per host."""
    with ExitStack() as stack:
        # Not in TMPDIR, whose path may be too long for a socket; private by its mode.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="undertow-", dir="/tmp")))
        paths = [folder / f"{host}.sock" for host in range(hosts)]
        started = [(stack.enter_context(_open_arbiter(path, environ)), path) for path in paths]
        for process, path in started:
            _wait_for(process, path)
        yield [{"UNDERTOW_SHARE_SOCKET": str(path)} for path in paths]


@contextmanager
def _open_arbiter(path: Path, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "undertow.crossover.arbiter", str(path), str(LEASE_S)]
    with path.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(FAREWELL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def check_arbiters(environments: Environments, jobs: int) -> None:
    """Raises `LabError` if not all workers are there: one without an arbiter computes when it likes, in silence."""
    for host, own in enumerate(environments):
        status = ask_status(Path(own["UNDERTOW_SHARE_SOCKET"]))
        found = 0 if status is None else sum(len(device.jobs) for device in status.devices)
        if status is None or found != jobs or len(status.devices) != 1:
            raise LabError(
                f"the arbiter of host {host} knows {found} jobs of {jobs} on one device: the others did not take "
                "turns, so these figures mean nothing"
            )


def _wait_for(process: subprocess.Popen[bytes], path: Path) -> None:
    """Return when it listens."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
            visitor.connect(str(path))
            return
        time.sleep(LOOK_EVERY_S)
    words = path.with_suffix(".log").read_text(errors="replace").splitlines()[-1:]
    raise LabError(f"an arbiter did not start: {words[0] if words else 'it said nothing'}")
