"""Starts the arbiter of this host as a process of its own.

In: where its socket shall be, its lease.  Out: its process, and its first `Status`.
It has a session of its own, so that neither Ctrl-C nor the end of a terminal reaches it; what it says goes to a file
beside the socket that only its user can read.
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
from undertow.crossover.place import prepare_folder
from undertow.errors import ConfigError, UndertowError

START_S = 20.0
LOOK_EVERY_S = 0.02


@dataclass(frozen=True)
class Started:
    """What came of it: perhaps somebody else was faster."""

    process: subprocess.Popen[bytes]
    status: Status

    @property
    def is_ours(self) -> bool:
        return self.status.pid == self.process.pid


def find_log(path: Path) -> Path:
    return path.with_suffix(".log")


def check_place(path: Path, lease_s: float) -> None:
    """Refuse what cannot work, and what would cost the user a file."""
    bounds.LEASE_S.check("--lease", lease_s)
    if path.suffix in (".log", ".lock"):
        raise ConfigError(f"{path} would be the arbiter's own {path.suffix} file: let the socket end in .sock")
    with contextlib.suppress(OSError):  # what cannot be looked at is refused when it is used
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"{path} is there and is no socket: choose another place")


def start_arbiter(path: Path, lease_s: float) -> Started:
    """Returns when it answers.  Raises `UndertowError` with its last words if it does not come up."""
    check_place(path, lease_s)
    try:
        prepare_folder(path)
        log = os.open(find_log(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UndertowError(f"the arbiter could not be started: {error}") from None
    try:
        os.fchmod(log, 0o600)
        said_before_bytes = os.fstat(log).st_size
        process = _start(path, lease_s, log)
    finally:
        os.close(log)
    try:
        return Started(process, _wait_for_answer(process, path, said_before_bytes))
    except BaseException:
        process.kill()
        process.wait()
        raise


def _start(path: Path, lease_s: float, log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "undertow.crossover.arbiter", str(path), str(lease_s)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def _wait_for_answer(process: subprocess.Popen[bytes], path: Path, said_before_bytes: int) -> Status:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        has_ended = process.poll() is not None  # looked at first: one that has ended may have found another there
        status = ask_status(path)
        if status is not None:
            return status
        if has_ended:
            words = _read_last_words(path, said_before_bytes)
            raise UndertowError(f"the arbiter could not be started: {words} (log: {find_log(path)})")
        time.sleep(LOOK_EVERY_S)
    raise UndertowError(f"the arbiter has not come up within {START_S:g} s: see {find_log(path)}")


def _read_last_words(path: Path, said_before_bytes: int) -> str:
    with find_log(path).open("rb") as log:
        log.seek(said_before_bytes)
        lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")
