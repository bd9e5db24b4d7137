"""Work in isolated namespaces ends with them, and its outcome is that of a local call."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.command import HANG_S
from tests.support.labs import needs_lab
from undertow.errors import ConfigError
from undertow.tools.lab.isolation import run_isolated
from undertow.tools.lab.network import open_network

pytestmark = needs_lab


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_code_comes_out(code: int) -> None:
    assert run_isolated(lambda: code) == code


@pytest.mark.parametrize(("wish", "code"), [(None, 0), (3, 3), ("words", 1)])
def test_an_exit_is_a_code_too(wish: object, code: int) -> None:
    assert run_isolated(lambda: sys.exit(wish)) == code  # type: ignore[arg-type]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_a_code_too(signum: signal.Signals) -> None:
    def work() -> int:
        os.kill(os.getpid(), signum)
        return 0

    assert run_isolated(work) == 128 + signum


def test_our_errors_come_out_as_they_are() -> None:
    def work() -> int:
        with open_network(0):
            return 0

    with pytest.raises(ConfigError, match="0 hosts are not possible"):
        run_isolated(work)


def test_errors_of_the_system_come_out_as_they_are() -> None:
    with pytest.raises(FileNotFoundError, match="No such file or directory: '/nowhere'"):
        run_isolated(lambda: os.open("/nowhere", os.O_RDONLY))


def test_any_other_error_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_isolated(lambda: 1 // 0) == 1
    shown = capfd.readouterr().err
    assert shown.startswith("Traceback")
    assert "ZeroDivisionError" in shown


def test_an_interrupt_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise KeyboardInterrupt

    assert run_isolated(work) == 130
    assert capfd.readouterr().err == ""


def test_what_was_printed_arrives_once() -> None:
    code = """
from undertow.tools.lab.isolation import run_isolated
def work():
    print("inside", end=" ")
    return 0
print("before", end=" ")
run_isolated(work)
print("after", end=" ")
"""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True, env=environ)
    assert result.stdout == "before inside after "


def test_the_caller_stays_where_it_is() -> None:
    def look() -> list[str]:
        return [os.readlink(f"/proc/self/ns/{name}") for name in ("net", "mnt", "uts", "pid", "pid_for_children")]

    before, mask = look(), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        assert run_isolated(lambda: 0) == 0
    assert look() == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    assert len(os.listdir("/proc/self/fd")) == files
    name = subprocess.run(["hostname"], capture_output=True, text=True, check=True).stdout.strip()
    assert name == socket.gethostname()


def test_inside_there_are_no_other_processes_and_no_network() -> None:
    def work() -> int:
        numbers = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        assert numbers == {1, os.getpid()}
        assert [name for _, name in socket.if_nameindex()] == ["lo"]
        socket.sethostname("changed")  # seen here only
        assert os.getsid(0) == 1  # out of the terminal's reach
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
        return 0

    name = socket.gethostname()
    assert run_isolated(work) == 0
    assert socket.gethostname() == name


def test_mounts_do_not_leak() -> None:
    # On most machines mounts are shared with new mount namespaces, so this is done where they are.
    def on_a_shared_tree() -> int:
        subprocess.run(["mount", "--make-rshared", "/"], check=True)
        before.extend(look())
        assert run_isolated(work) == 0
        assert look() == before
        return 0

    def work() -> int:
        with open_network(2):
            assert Path("/etc/hosts").read_text().startswith("10.77.0.1 host0\n")
            assert os.listdir("/tmp")  # it was covered for a moment
        assert Path("/etc/hosts").read_text() == before[0]
        return 0

    def look() -> list[str]:
        return [Path(name).read_text() for name in ("/etc/hosts", "/proc/self/mountinfo")]

    before: list[str] = []
    assert run_isolated(on_a_shared_tree) == 0


def test_orphans_are_reaped() -> None:
    def work() -> int:
        for _ in range(20):
            subprocess.run(["sh", "-c", "sleep 0 & exit"], check=True)
        left = {1, os.getpid()}
        deadline_s = time.monotonic() + HANG_S
        while {int(name) for name in os.listdir("/proc") if name.isdecimal()} != left:
            assert time.monotonic() < deadline_s, "zombies are left"
            time.sleep(0.01)
        return 0

    assert run_isolated(work) == 0


def test_children_keep_their_codes_among_orphans() -> None:
    def work() -> int:
        for _ in range(20):
            done = subprocess.run(["sh", "-c", "sleep 0 & exit 5"], check=False)
            assert done.returncode == 5
        return 0

    assert run_isolated(work) == 0


def test_a_caller_that_ignores_its_children_still_learns_the_code() -> None:
    code = """
import signal, sys
from undertow.tools.lab.isolation import run_isolated
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
sys.exit(run_isolated(lambda: 5))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=HANG_S, check=False).returncode == 5


def test_closed_standard_streams_do_not_mix_with_our_files() -> None:
    code = """
import os, sys
from undertow.tools.lab.isolation import run_isolated
def work():
    os.write(2, b"this is no error")
    return 5
for fd in range(3):
    os.close(fd)
os._exit(run_isolated(work))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=HANG_S, check=False).returncode == 5
