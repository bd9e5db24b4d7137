"""Cleanup guard: ends the workers and removes temporary folders when the launcher itself was killed.

In: lines `+pid` and `-pid` on stdin, one for each worker's process group that starts or ends, and paths of folders.
A process that starts a launcher has a guard too, with lines `~pid` and `-pid`.
Out: nothing; when stdin closes, every process group that is still listed gets SIGKILL, every launcher SIGTERM (it
ends its workers), and then every folder is removed.
A process of its own, because prctl(PR_SET_PDEATHSIG) would need code between fork and
exec (unsafe in a process with threads) and would not reach the workers' own children.
Started by path in isolated mode, so it must import the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Container, Iterable
from pathlib import Path

PASSES = 20
# How long a launcher may take to end its workers before it is killed; then its own guard ends them.
LAUNCHER_GRACE_S = 10.0


class CleanupGuard:
    """The launcher's handle to its guard process.

    Write errors are ignored: a guard that is gone only matters if the launcher is killed as well.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, text=True)
        self.pid = self._process.pid

    def watch(self, pid: int) -> None:
        self._send(f"+{pid}")

    def watch_launcher(self, pid: int) -> None:
        self._send(f"~{pid}")

    def forget(self, pid: int) -> None:
        self._send(f"-{pid}")

    def remove(self, folder: Path) -> None:
        """Have this folder (an absolute path) removed when the launcher is gone, if it still exists."""
        self._send(str(folder))

    def close(self) -> None:
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _send(self, line: str) -> None:
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def signal_group(leader: int, signum: int) -> None:
    """Send a signal to a worker and to the children that stayed in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signum)


def kill_descendants(roots: Iterable[int], *, spare: Container[int] = ()) -> None:
    """Kill all descendants of `roots`, including those that moved to a session of their own."""
    for _ in range(PASSES):  # repeated, because a process may fork during the search
        victims = [pid for pid in find_descendants(roots) if pid not in spare]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not victims:
            return
        time.sleep(0.01)


def reap_orphans(spare: Container[int]) -> None:
    """Reap adopted grandchildren that have ended; leave children in `spare` to the caller."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in spare:
                return
            os.waitpid(ended.si_pid, 0)


def find_descendants(roots: Iterable[int]) -> list[int]:
    """List the living descendants of `roots`, without the roots; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in _list_processes():
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = _read_stat(entry)
            if state != "Z":
                children.setdefault(parent, []).append(int(entry.parent.name))
    found: list[int] = []
    todo = list(roots)
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _list_processes() -> list[Path]:
    with contextlib.suppress(OSError):  # a job may end because it has used up its file descriptors
        return list(Path("/proc").glob("[0-9]*/stat"))
    return []


def read_state(pid: int) -> str:
    """Return one letter as in ps: R runs, S sleeps, T was stopped; empty when unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return _read_stat(Path(f"/proc/{pid}/stat"))[0]
    return ""


def _read_stat(path: Path) -> tuple[str, int]:
    # The command name in parentheses may hold anything, closing parentheses included.
    state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
    return state, int(parent)


def end_launchers(pids: Iterable[int]) -> None:
    """Ask these launchers to end, wait until they have, and kill those that take too long."""
    living = _signal_each(pids, signal.SIGTERM)
    deadline_s = time.monotonic() + LAUNCHER_GRACE_S
    while living and time.monotonic() < deadline_s:
        time.sleep(0.01)
        living = [pid for pid in living if read_state(pid) not in ("", "Z")]
    _signal_each(living, signal.SIGKILL)


def _signal_each(pids: Iterable[int], signum: int) -> list[int]:
    """Signal each process; return those that still existed."""
    reached = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
            reached.append(pid)
    return reached


def main() -> None:
    groups: set[int] = set()
    launchers: set[int] = set()
    folders: list[str] = []
    for line in sys.stdin:
        if line.startswith("/"):
            folders.append(line.rstrip("\n"))
        elif line[0] == "-":
            groups.discard(int(line[1:]))
            launchers.discard(int(line[1:]))
        else:
            (groups if line[0] == "+" else launchers).add(int(line[1:]))
    end_launchers(launchers)
    kill_descendants(groups)
    for pid in groups:
        signal_group(pid, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
