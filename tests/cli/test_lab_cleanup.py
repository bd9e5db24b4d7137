"""Nothing outlives a lab, however it ends, and every interrupt arrives exactly once."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.command import HANG_S, Cli, wait_until
from tests.support.labs import count_threads, find_children, find_marked, find_traces, mark_processes, needs_lab

# Every rank has a child that nobody could find: in a session of its own, without a parent.
FAMILY = """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            mark(f"daemon{rank}")
            time.sleep(600)
        os._exit(0)
    os.wait()
    wait_for(f"daemon{rank}")
    mark(f"ready{rank}")
"""

# Counts interrupts until it is killed, so that none can come too late to be seen.
COUNT = """
    count = 0
    def note(*_):
        global count
        count += 1
        mark(f"interrupt{rank}-{count}")
    signal.signal(signal.SIGINT, note)
    mark(f"ready{rank}")
    while True:
        time.sleep(600)
"""
ONCE = ["interrupt0-1", "interrupt1-1"]


def start_family(cli: Cli, ending: str) -> subprocess.Popen[str]:
    mark_processes(cli)
    process = cli.start("lab", "run", "--hosts", 2, cli.write(FAMILY + f"    {ending}\n"))
    cli.wait_for_files("ready*", 2)
    return process


@pytest.fixture
def traces() -> Iterator[None]:
    before = find_traces()
    yield
    assert find_traces() == before


pytestmark = [needs_lab, pytest.mark.usefixtures("traces")]


@pytest.mark.parametrize(("ending", "code"), [("pass", 0), ("sys.exit(3 if rank else 0)", 3), ("1 / 0", 1)])
def test_nothing_is_left_when_the_workers_end(cli: Cli, ending: str, code: int) -> None:
    process = start_family(cli, ending)
    assert process.wait(HANG_S) == code
    assert find_marked(cli) == []


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]
)
def test_nothing_is_left_after_a_stop_signal(cli: Cli, signum: signal.Signals, code: int) -> None:
    process = start_family(cli, "time.sleep(600)")
    assert len(find_marked(cli)) >= 7  # the command, the first, the supervisor, two workers, two daemons
    process.send_signal(signum)
    assert process.wait(HANG_S) == code
    assert find_marked(cli) == []


def test_nothing_is_left_when_the_command_is_killed(cli: Cli) -> None:
    process = start_family(cli, "time.sleep(600)")
    process.kill()
    wait_until(lambda: find_marked(cli) == [])


@pytest.mark.parametrize("depth", [1, 2])  # number 1 of the namespace, and the supervisor below it
def test_nothing_is_left_when_a_part_of_the_lab_is_killed(cli: Cli, depth: int) -> None:
    process = start_family(cli, "time.sleep(600)")
    pid = process.pid
    for _ in range(depth):
        [pid] = find_children(pid)[:1]
    os.kill(pid, signal.SIGKILL)
    assert process.wait(HANG_S) == 137
    assert find_marked(cli) == []


def test_a_stubborn_worker_is_killed_by_a_second_interrupt(cli: Cli) -> None:
    mark_processes(cli)
    script = cli.write("""
        signal.signal(signal.SIGINT, lambda *_: mark(f"deaf{rank}"))
        mark(f"ready{rank}")
        while True:
            time.sleep(600)
    """)
    process = cli.start("lab", "run", "--hosts", 2, script)
    cli.wait_for_files("ready*", 2)
    process.send_signal(signal.SIGINT)
    cli.wait_for_files("deaf*", 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(HANG_S) == 130
    assert find_marked(cli) == []


def test_an_interrupt_by_kill_arrives_once(cli: Cli) -> None:
    process = cli.start("lab", "run", "--hosts", 2, cli.write(COUNT))
    cli.wait_for_files("ready*", 2)
    process.send_signal(signal.SIGINT)
    result = cli.finish(process)
    assert result.returncode == 130
    assert result.stderr.splitlines()[-1] == "undertow: interrupted by SIGINT, all workers have ended"
    assert sorted(path.name for path in cli.folder.glob("interrupt*")) == ONCE


@contextmanager
def open_terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


def test_an_interrupt_from_the_terminal_arrives_once(cli: Cli) -> None:
    with open_terminal() as (ours, theirs):
        process = cli.start(
            "lab",
            "run",
            "--hosts",
            2,
            cli.write(COUNT),
            stdin=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
        )
        cli.wait_for_files("ready*", 2)
        os.write(ours, b"\x03")  # Ctrl-C: the terminal signals everybody in the foreground
        assert cli.finish(process).returncode == 130
    assert sorted(path.name for path in cli.folder.glob("interrupt*")) == ONCE


def is_measuring(pid: int) -> bool:
    """Return whether the threads of a measurement run in the process below the first one."""
    works = [work for first in find_children(pid) for work in find_children(first)]
    return any(count_threads(work) >= 3 for work in works)


def test_an_interrupt_during_the_link_check_ends_it(cli: Cli) -> None:
    mark_processes(cli)
    process = cli.start("lab", "run", "--hosts", 40, "--bandwidth", "50mbit", cli.write("mark('started')"))
    wait_until(lambda: is_measuring(process.pid))
    process.send_signal(signal.SIGINT)
    result = cli.finish(process)
    assert (result.returncode, result.stderr) == (130, "undertow: interrupted by SIGINT, all workers have ended\n")
    assert find_marked(cli) == []
    assert not (cli.folder / "started").exists()


def test_a_closed_terminal_is_no_reason_to_end_under_nohup(cli: Cli) -> None:
    script = cli.write("""
        mark(f"ready{rank}")
        wait_for("end")
    """)
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    process = cli.start("lab", "run", "--hosts", 2, script, preexec_fn=ignore)
    cli.wait_for_files("ready*", 2)
    process.send_signal(signal.SIGHUP)
    (cli.folder / "end").touch()
    assert cli.finish(process).returncode == 0


def test_consecutive_runs(cli: Cli) -> None:
    for _ in range(2):
        assert cli.run("lab", "run", "--hosts", 2, "true").returncode == 0
