"""`undertow share up`, `status` and `down`: what they do, repeated calls, and obstacles."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import HANG_S, Cli, is_alive, wait_until
from tests.support.shared_jobs import find_arbiters, open_share, run_arbiter
from undertow.crossover.contact import ask_status


@pytest.fixture
def path(cli: Cli) -> Iterator[Path]:
    with open_share(cli) as path:
        yield path


def test_up_status_and_down_twice_each(cli: Cli, path: Path) -> None:
    first = cli.run("share", "up", "--lease", 7)
    (pid,) = find_arbiters(path)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == f"the arbiter is up: pid {pid} at {path}, lease 7 s; log: {path.with_suffix('.log')}\n"
    assert os.getsid(pid) == pid  # neither Ctrl-C nor a closed terminal reaches it
    assert stat.S_IMODE(path.with_suffix(".log").stat().st_mode) == 0o600

    second = cli.run("share", "up")
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout.startswith(f"an arbiter is up already: pid {pid} at {path}, lease 7 s and not 30 s;")
    assert find_arbiters(path) == [pid]

    status = cli.run("share", "status")
    assert (status.returncode, status.stderr) == (0, "")
    assert f"pid {pid} at {path}, lease 7 s" in status.stdout
    assert "no job shares a device: start one with undertow run --share" in status.stdout
    said = json.loads(cli.run("share", "status", "--json").stdout)
    assert (said["type"], said["pid"], said["lease_s"], said["devices"]) == ("Status", pid, 7.0, [])

    down = cli.run("share", "down")
    assert (down.returncode, down.stdout, down.stderr) == (0, f"the arbiter, pid {pid}, is down\n", "")
    assert not is_alive(pid)
    again = cli.run("share", "down")
    assert (again.returncode, again.stdout) == (0, f"no arbiter is up at {path}: nothing to do\n")


def test_help_names_the_commands_and_an_example(cli: Cli) -> None:
    result = cli.run("share")
    assert result.returncode == 2
    assert "undertow share run first.toml second.toml" in result.stdout
    assert not [name for name in ("up", "status", "down", "run") if f" {name} " not in result.stdout]


def test_without_an_arbiter_status_says_how_to_start_one(cli: Cli, path: Path) -> None:
    result = cli.run("share", "status", "--watch")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"undertow share status: no arbiter is up at {path}: start one with undertow share up\n"


def test_after_a_kill_there_is_no_arbiter_and_up_works(cli: Cli, path: Path) -> None:
    cli.run("share", "up")
    (pid,) = find_arbiters(path)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid))
    assert path.exists()
    assert ask_status(path) is None
    assert cli.run("share", "up").returncode == 0
    assert len(find_arbiters(path)) == 1


def test_the_option_overrides_the_variable(cli: Cli, path: Path) -> None:
    other = cli.folder / "o.sock"
    with run_arbiter(other):
        result = cli.run("share", "status", "--socket", os.path.relpath(other))
    assert (result.returncode, result.stderr) == (0, "")
    assert f" at {other}," in result.stdout


def test_an_arbiter_that_cannot_start_shows_its_error(cli: Cli, path: Path) -> None:
    path.with_name(f"{path.name}.lock").mkdir()  # its lock cannot be opened
    result = cli.run("share", "up")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "the arbiter could not be started: IsADirectoryError" in result.stderr
    assert f"(log: {path.with_suffix('.log')})" in result.stderr


def test_a_file_of_the_user_is_not_replaced(cli: Cli, path: Path) -> None:
    path.write_text("mine")
    result = cli.run("share", "up")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert f"{path} exists and is not a socket" in result.stderr
    assert path.read_text() == "mine"


def test_a_folder_that_others_can_change_is_refused(cli: Cli, path: Path) -> None:
    cli.folder.chmod(0o777)
    result = cli.run("share", "up")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "is not a folder of this user alone" in result.stderr


def test_in_the_foreground_a_second_arbiter_is_refused(cli: Cli, path: Path) -> None:
    process = cli.start("share", "up", "--foreground")
    wait_until(lambda: ask_status(path) is not None)
    second = cli.run("share", "up", "--foreground")
    assert (second.returncode, second.stdout) == (1, "")
    assert f"an arbiter is up already: pid {process.pid}" in second.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_it_ends_with_the_signal(cli: Cli, path: Path, signum: int) -> None:
    process = cli.start("share", "up", "--foreground")
    wait_until(lambda: ask_status(path) is not None)
    process.send_signal(signum)
    result = cli.finish(process)
    assert result.returncode == 0
    assert "Traceback" not in result.stderr
    assert not path.exists()


def test_watching_into_a_file_is_plain_and_ctrl_c_is_no_failure(cli: Cli, path: Path) -> None:
    with run_arbiter(path):
        process = cli.start("share", "status", "--watch")
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("arbiter: pid ")
        assert "\x1b" not in line
        process.send_signal(signal.SIGINT)
        result = cli.finish(process)
    assert (result.returncode, result.stderr) == (0, "")


def test_watching_in_a_terminal_redraws_until_ctrl_c(cli: Cli, path: Path) -> None:
    reader, writer = pty.openpty()
    with run_arbiter(path):
        process = cli.start("share", "status", "--watch", stdout=writer, stderr=subprocess.DEVNULL)
        os.close(writer)
        shown = b""
        while shown.count(b"arbiter: pid ") < 2:
            shown += os.read(reader, 4096)
        assert b"\x1b[2K" in shown  # the old lines are wiped
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
    os.close(reader)


def test_watching_ends_with_the_arbiter(cli: Cli, path: Path) -> None:
    with run_arbiter(path):
        process = cli.start("share", "status", "--watch", "--json")
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["devices"] == []
    result = cli.finish(process)
    assert result.returncode == 1
    assert "no arbiter is up" in result.stderr
