"""`undertow share run` and `undertow run --share`: concurrent jobs, their summary, and their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Cli, is_alive, wait_until
from tests.support.shared_jobs import WatchedArbiter, find_arbiters, open_share, run_arbiter, write_job
from undertow.crossover.messages import DeviceStatus

# A worker that takes turns, without torch; it runs until it is told to stop.
TAKE_TURNS = """
    from undertow.crossover.client import TurnClient
    from undertow.crossover.messages import VERSION, Hello
    name = os.environ["UNDERTOW_SHARE_NAME"]
    hello = Hello(
        version=VERSION, job=name, name=name, rank=rank, world_size=1, pid=os.getpid(),
        device="cpu", weight=float(os.environ.get("UNDERTOW_SHARE_WEIGHT", 1)),
    )
    turn = TurnClient(hello, pathlib.Path(os.environ["UNDERTOW_SHARE_SOCKET"]))
    turn.start()
    mark(f"{name}-here")
    wait_for("both")
    for step in range(12):
        turn.take()
        turn.end_step()
    mark(f"{name}-done")
    wait_for("seen")
"""


@pytest.fixture
def path(cli: Cli) -> Iterator[Path]:
    with open_share(cli) as path:
        yield path


@pytest.fixture
def arbiter(path: Path) -> Iterator[WatchedArbiter]:
    with run_arbiter(path) as arbiter:
        yield arbiter


def test_two_jobs_share_and_the_table_shows_their_device_time(cli: Cli, path: Path, arbiter: WatchedArbiter) -> None:
    cli.write(TAKE_TURNS)
    first = write_job(cli, "first", 'script = "script.py"\nweight = 2')
    second = write_job(cli, "second", 'script = "script.py"')
    process = cli.start("share", "run", first, second)
    cli.wait_for_files("*-here", 2)
    (cli.folder / "both").touch()
    cli.wait_for_files("*-done", 2)
    asked = arbiter.asked
    wait_until(lambda: arbiter.asked >= asked + 2)  # at least once after they were done
    devices: list[DeviceStatus] = arbiter._state.describe(0.0)
    assert {(job.name, job.weight) for job in devices[0].jobs} == {("first", 2.0), ("second", 1.0)}
    (cli.folder / "seen").touch()
    result = cli.finish(process)
    assert result.returncode == 0, result.stderr
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.split()}
    assert rows["first"][1] == rows["second"][1] == "0"
    assert rows["first"][4] == rows["second"][4] == "12"  # steps
    assert "cpu: predicted: " in result.stdout
    assert path.exists()  # it existed before


def test_an_arbiter_runs_only_while_the_jobs_run(cli: Cli, path: Path) -> None:
    cli.write("""
        import socket
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.environ["UNDERTOW_SHARE_SOCKET"])
        print("found it", sys.argv[1:], os.getcwd(), os.environ["WHO"], os.environ["UNDERTOW_SHARE_NAME"])
    """)
    job = write_job(cli, "one", 'script = "script.py"\nargs = ["-n", "x y"]\nname = "my job"\nenv = {WHO = "me"}')
    result = cli.run("share", "run", job)
    assert result.returncode == 0, result.stderr
    assert f"[my job] [rank 0] found it ['-n', 'x y'] {cli.folder} me my job\n" in result.stdout
    assert "not seen by the arbiter: my job" in result.stdout
    assert find_arbiters(path) == []
    assert {name for name in os.listdir(cli.folder) if name.startswith("s.")} == {f"{path.name}.lock", "s.log"}


def test_a_failing_job_does_not_end_the_others_and_the_first_code_counts(cli: Cli, path: Path) -> None:
    cli.write("mark('bad'); sys.exit(7)", "bad.py")
    cli.write("wait_for('go'); mark('late'); sys.exit(9)", "worse.py")
    cli.write("wait_for('late'); print('finished')", "good.py")
    files = [write_job(cli, name, f'script = "{name}.py"') for name in ("good", "worse", "bad")]
    process = cli.start("share", "run", *files)
    assert process.stderr is not None
    said = ""
    while "bad has failed with exit code 7; the other jobs go on" not in said:
        said = process.stderr.readline()
    (cli.folder / "go").touch()
    result = cli.finish(process)
    assert result.returncode == 7
    assert "[good] [rank 0] finished\n" in result.stdout
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.split()}
    assert [rows[name][1] for name in ("good", "worse", "bad")] == ["0", "9", "7"]


WAIT = """
    child = subprocess.Popen(["sleep", "300"])
    mark(f"pids-{os.getpid()}", f"{os.getpid()} {child.pid}")
    child.wait()
"""


def start_two(cli: Cli) -> tuple[subprocess.Popen[str], list[int]]:
    cli.write(WAIT)
    files = [write_job(cli, name, 'script = "script.py"') for name in ("one", "two")]
    process = cli.start("share", "run", *files)
    marks = cli.wait_for_files("pids-*", 2)
    return process, [int(pid) for mark in marks for pid in mark.read_text().split()]


def test_ctrl_c_ends_all_jobs_and_the_arbiter(cli: Cli, path: Path) -> None:
    process, pids = start_two(cli)
    process.send_signal(signal.SIGINT)
    result = cli.finish(process)
    assert result.returncode == 130
    for job in ("one", "two"):  # each launcher reported
        assert f"[{job}] undertow: interrupted by SIGINT, all workers have ended\n" in result.stderr
    assert result.stderr.endswith("undertow: interrupted by SIGINT, all jobs have ended\n")
    assert not [pid for pid in pids if is_alive(pid)]
    assert find_arbiters(path) == []


def test_nothing_outlives_a_killed_share_run(cli: Cli, path: Path) -> None:
    process, pids = start_two(cli)
    process.kill()
    wait_until(lambda: not any(map(is_alive, pids)))
    wait_until(lambda: find_arbiters(path) == [])


def test_a_bad_file_is_one_line_and_nothing_is_started(cli: Cli, path: Path) -> None:
    good, bad = write_job(cli, "good", 'module = "this"'), write_job(cli, "bad", 'module = "this"\nn = "2"')
    result = cli.run("share", "run", good, bad)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"undertow share run: {bad}: n: expected int, got str\n"
    assert not path.with_suffix(".log").exists()


def test_run_share_sets_the_workers_variables(cli: Cli) -> None:
    script = cli.write("""
        import json
        mark("env.json", json.dumps({k: v for k, v in os.environ.items() if k.startswith("UNDERTOW_SHARE")}))
    """)
    assert cli.run("run", "--share", "--weight", 2.5, "--urgent", script).returncode == 0
    expected = {"": "1", "_NAME": "script", "_WEIGHT": "2.5", "_URGENT": "1"}
    told = json.loads((cli.folder / "env.json").read_text())
    assert told == {f"UNDERTOW_SHARE{key}": value for key, value in expected.items()}


def test_sharing_options_without_share_are_refused(cli: Cli) -> None:
    result = cli.run("run", "--weight", 2, __file__)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "undertow run: --weight is for jobs that share their devices: add --share, or leave it out\n"
    )
