"""Start of this host's arbiter as a process of its own.

In: the path of its socket, its lease.  Out: its process, and its first `Status`.
It gets a session of its own, so that neither Ctrl-C nor the end of a terminal reaches it; its output goes to a file
beside the socket, which only its user can read.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from undertow import bounds
from undertow.crossover.contact import ask_status
from undertow.crossover.messages import Status
from undertow.crossover.socket_path import prepare_folder
from undertow.errors import ConfigError, UndertowError

START_S = 20.0
POLL_S = 0.02


@dataclass(frozen=True)
class StartedArbiter:
    """A started arbiter process, and the status of the arbiter that answers at its socket."""

    process: subprocess.Popen[bytes]
    status: Status  # of another process, if that process was faster

    @property
    def is_ours(self) -> bool:
        return self.status.pid == self.process.pid


def find_log(path: Path) -> Path:
    return path.with_suffix(".log")


def check_socket_path(path: Path, lease_s: float) -> None:
    """Refuse a lease or path that cannot work, and a path whose use would overwrite a file of the user."""
    bounds.LEASE_S.check("--lease", lease_s)
    if path.suffix in (".log", ".lock"):
        raise ConfigError(f"{path} would be the arbiter's own {path.suffix} file: give a path that ends in .sock")
    with contextlib.suppress(OSError):  # a path that cannot be examined is refused when it is used
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"{path} exists and is not a socket: choose another path")


def start_arbiter(path: Path, lease_s: float) -> StartedArbiter:
    """Start the arbiter, and return when it answers; raise `UndertowError` with its last output if it does not."""
    check_socket_path(path, lease_s)
    try:
        prepare_folder(path)
        log = os.open(find_log(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UndertowError(f"the arbiter could not be started: {error}") from None
    try:
        os.fchmod(log, 0o600)
        old_log_bytes = os.fstat(log).st_size
        process = subprocess.Popen(
            [sys.executable, "-m", "undertow.crossover.arbiter", str(path), str(lease_s)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    try:
        return StartedArbiter(process, _wait_for_answer(process, path, old_log_bytes))
    except BaseException:
        process.kill()
        process.wait()
        raise


def _wait_for_answer(process: subprocess.Popen[bytes], path: Path, old_log_bytes: int) -> Status:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        has_ended = process.poll() is not None  # checked first: it may have ended because another arbiter runs
        status = ask_status(path)
        if status is not None:
            return status
        if has_ended:
            last_line = _read_last_line(path, old_log_bytes)
            raise UndertowError(f"the arbiter could not be started: {last_line} (log: {find_log(path)})")
        time.sleep(POLL_S)
    raise UndertowError(f"the arbiter did not answer within {START_S:g} s: see {find_log(path)}")


def _read_last_line(path: Path, old_log_bytes: int) -> str:
    with find_log(path).open("rb") as log:
        log.seek(old_log_bytes)
        lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it printed nothing")
