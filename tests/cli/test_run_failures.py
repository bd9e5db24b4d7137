"""Failures under `undertow run`: the first cause is printed last, and nothing is left behind."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess

import pytest

from tests.support.command import HANG_S, Cli, is_alive, wait_until

# A worker with children: one that ignores polite signals, one that left for a session of its own.
FAMILY = """
    stubborn = "from signal import *; import time; signal(2, SIG_IGN); signal(15, SIG_IGN); time.sleep(600)"
    children = [
        subprocess.Popen([sys.executable, "-c", stubborn]),
        subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True),
    ]
    mark(f"pids{rank}", " ".join(str(pid) for pid in [os.getpid(), *(child.pid for child in children)]))
"""


def start_family(cli: Cli, then: str, count: int = 2) -> tuple[subprocess.Popen[str], list[int]]:
    process = cli.start("run", "-n", count, cli.write(FAMILY + then))
    files = cli.wait_for_files("pids*", count)
    return process, [int(pid) for file in files for pid in file.read_text().split()]


def test_the_first_cause_comes_last_and_in_full(cli: Cli) -> None:
    script = cli.write("""
        from undertow.errors import PeerLost
        if rank == 1:
            mark("failing")
            raise ValueError("the very first cause")
        wait_for("failing")
        if rank == 2:
            time.sleep(600)
        raise PeerLost("its script failed", rank=1, host="a")
    """)
    result = cli.run("run", "-n", 3, script)
    assert result.returncode == 1
    followers, _, rest = result.stderr.rpartition("rank 1 (host ")
    assert re.match(r"\S+\) failed first: exit code 1\nTraceback ", rest)
    assert rest.endswith("ValueError: the very first cause\n")
    assert followers.splitlines()[-2:] == [
        "rank 0 failed too: exit code 1: undertow.errors.PeerLost: rank 1 on host a was lost: its script failed",
        "rank 2 was ended, because another rank failed",
    ]


def test_a_failing_rank_ends_the_others_and_all_their_children(cli: Cli) -> None:
    process, pids = start_family(
        cli,
        """
    if rank == 1:
        wait_for("pids0")
        sys.exit(5)
    time.sleep(600)
    """,
    )
    assert process.wait(HANG_S) == 5
    assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupt_ends_everything(cli: Cli, signum: signal.Signals, code: int) -> None:
    process, pids = start_family(cli, "    time.sleep(600)")
    process.send_signal(signum)
    result = cli.finish(process)
    assert result.returncode == code
    assert result.stderr.endswith(f"undertow: interrupted by {signum.name}, all workers have ended\n")
    assert not [pid for pid in pids if is_alive(pid)]


def test_workers_are_interrupted_before_they_are_killed(cli: Cli) -> None:
    script = cli.write("""
        try:
            mark("ready")
            time.sleep(600)
        except KeyboardInterrupt:
            mark("saved")
    """)
    process = cli.start("run", script)
    cli.wait_for_files("ready", 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(HANG_S) == 130
    assert (cli.folder / "saved").exists()


def test_stubborn_workers_are_killed(cli: Cli) -> None:
    script = cli.write("""
        signal.signal(signal.SIGINT, lambda *_: mark("asked"))
        mark("pid", os.getpid())
        while True:
            time.sleep(600)
    """)
    process = cli.start("run", script)
    [file] = cli.wait_for_files("pid", 1)
    process.send_signal(signal.SIGINT)
    cli.wait_for_files("asked", 1)
    assert process.wait(HANG_S) == 130
    assert not is_alive(int(file.read_text()))


def test_an_interrupt_ends_stopped_workers_too(cli: Cli) -> None:
    process, pids = start_family(cli, "    os.kill(os.getpid(), signal.SIGSTOP)")
    process.send_signal(signal.SIGINT)
    assert process.wait(HANG_S) == 130
    assert not [pid for pid in pids if is_alive(pid)]


def test_a_blocked_reader_does_not_hold_up_an_interrupt(cli: Cli) -> None:
    script = cli.write("""
        mark("ready")
        while True:
            print("x" * 1000)
    """)
    process = cli.start("run", script)
    cli.wait_for_files("ready", 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(HANG_S) == 130  # although nothing was read


def test_a_pipe_that_nobody_reads_does_not_hold_up_an_interrupt(cli: Cli) -> None:
    script = cli.write("""
        mark(f"ready{rank}")
        time.sleep(600)
    """)
    reader, writer = os.pipe()
    os.write(writer, bytes(1 << 16))  # full: neither the first nor the last message can be written
    process = cli.start("run", "-n", 2, script, stdout=writer, stderr=writer)
    cli.wait_for_files("ready*", 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(HANG_S) == 130
    for fd in (reader, writer):
        os.close(fd)


def test_a_reader_that_went_away_does_not_change_the_exit_code(cli: Cli) -> None:
    script = cli.write("""
        mark(f"ready{rank}")
        if len(sys.argv) > 1:
            sys.exit(3)
        time.sleep(600)
    """)
    reader, writer = os.pipe()
    os.close(reader)
    failed = cli.start("run", "-n", 2, script, "fail", stdout=writer, stderr=writer)
    assert failed.wait(HANG_S) == 3
    for file in cli.folder.glob("ready*"):
        file.unlink()
    interrupted = cli.start("run", "-n", 2, script, stdout=writer, stderr=writer)
    cli.wait_for_files("ready*", 2)
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait(HANG_S) == 130
    os.close(writer)


def test_a_lost_notice_does_not_end_the_job(cli: Cli) -> None:
    with open("/dev/full", "wb") as full:
        process = cli.start("run", "-n", 2, cli.write("mark(f'done{rank}')"), stderr=full)
        assert process.wait(HANG_S) == 0
    assert len(list(cli.folder.glob("done*"))) == 2


def test_an_interrupt_does_not_fill_the_screen_with_tracebacks(cli: Cli) -> None:
    script = cli.write("""
        try:
            mark(f"ready{rank}")
            time.sleep(600)
        finally:
            print("stdout goes on")
    """)
    cli.environment["OMP_NUM_THREADS"] = "1"
    process = cli.start("run", "-n", 2, script)
    cli.wait_for_files("ready*", 2)
    process.send_signal(signal.SIGINT)
    result = cli.finish(process)
    assert result.stderr == "undertow: interrupted by SIGINT, all workers have ended\n"
    assert result.stdout.count("stdout goes on") == 2


@pytest.mark.parametrize("limit", range(20, 32))  # wherever the last file descriptor is taken
def test_too_few_file_descriptors_are_one_line_and_code_1(cli: Cli, limit: int) -> None:
    cli.environment["OMP_NUM_THREADS"] = "1"
    script = cli.write("""
        mark(f"pid{rank}", os.getpid())
        time.sleep(600)
    """)
    process = cli.start(
        "run", "-n", 16, script, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    )
    result = cli.finish(process)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("Too many open files; allow more with: ulimit -n 4096\n")
    assert not [file for file in cli.folder.glob("pid*") if is_alive(int(file.read_text()))]


def test_a_stopped_rank_that_the_others_lost_is_named(cli: Cli) -> None:
    script = cli.write("""
        from undertow.errors import PeerLost
        if rank == 2:
            mark("stopped")
            os.kill(os.getpid(), signal.SIGSTOP)
        wait_for("stopped")
        if rank == 1:  # it has reported, but cannot end
            import atexit
            atexit.register(time.sleep, 600)
        raise PeerLost("no sign of life", rank=2, host="vm", own_rank=rank, step=7)
    """)
    result = cli.run("run", "-n", 3, script)
    assert result.returncode == 1
    lost = "undertow.errors.PeerLost: rank 2 on host vm was lost: no sign of life; this is rank"
    followers, _, rest = result.stderr.rpartition("rank 2 (host vm) was lost first: no sign of life\n")
    assert followers.splitlines()[-1] == f"rank 1 failed too: {lost} 1 at step 7"
    assert rest.startswith("Traceback ")
    assert rest.endswith(f"{lost} 0 at step 7\n")


def test_nothing_outlives_a_launcher_that_was_killed(cli: Cli) -> None:
    process, pids = start_family(cli, "    time.sleep(600)")
    process.kill()
    wait_until(lambda: not [pid for pid in pids if is_alive(pid)])


def test_a_stopped_worker_is_named_but_not_killed(cli: Cli) -> None:
    script = cli.write("""
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            mark("woken")
        else:
            wait_for("woken")
    """)
    process = cli.start("run", "-n", 2, script)
    assert process.stderr is not None
    line = next(line for line in process.stderr if "is stopped" in line)
    found = re.fullmatch(r"undertow: rank 1 \(pid (\d+)\) is stopped .*\n", line)
    assert found
    os.kill(int(found[1]), signal.SIGCONT)
    assert process.wait(HANG_S) == 0


def test_a_detached_child_does_not_hang_a_good_run(cli: Cli) -> None:
    script = cli.write("""
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
        mark("detached", subprocess.Popen(sleeper, start_new_session=True).pid)
        print("last words")
    """)
    process = cli.start("run", script)
    [file] = cli.wait_for_files("detached", 1)
    try:
        assert process.wait(HANG_S) == 0
        assert process.stdout is not None
        assert process.stdout.readline() == "[rank 0] last words\n"
    finally:
        os.kill(int(file.read_text()), signal.SIGKILL)


def test_a_long_error_is_cut_at_its_beginning(cli: Cli) -> None:
    script = cli.write("""
        for number in range(1000):
            print("noise", number, file=sys.stderr)
        raise ValueError("the end")
    """)
    report = cli.run("run", script).stderr.split("failed first")[1].splitlines()
    assert report[1] == "(earlier lines left out)"
    assert report[-1] == "ValueError: the end"
    assert len(report) == 202
