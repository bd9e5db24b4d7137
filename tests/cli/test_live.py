"""`undertow run --live` and `--live-port` with real workers: in a log, and over HTTP."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.support.command import HANG_S, Cli, wait_until
from tests.support.live_jobs import FAIL, LATE, TRAIN, UNTIL_TOLD, fetch, find_page, wait_for_state
from tests.support.live_samples import read_metrics


@pytest.fixture(autouse=True)
def no_hint_about_threads(cli: Cli) -> None:
    cli.environment["OMP_NUM_THREADS"] = "1"


def test_in_a_log_rank_0_is_as_it_is_and_a_line_sums_up(cli: Cli) -> None:
    result = cli.run("run", "--live", "-n", 2, cli.write(TRAIN))
    assert (result.returncode, result.stdout) == (0, "loss 0.5 of rank 0\n")
    assert result.stderr.startswith("a warning\n")
    last = result.stderr.splitlines()[-1]
    assert re.fullmatch(r"undertow: step 40, \S+ steps/s, \d+ % waiting.*, out \S+ B/s, in \S+ B/s each", last)
    assert "\x1b" not in result.stdout + result.stderr


def test_the_page_has_all_ranks_while_they_train(cli: Cli) -> None:
    process = cli.start("run", "--live-port", 0, "-n", 2, cli.write(TRAIN + UNTIL_TOLD))
    page = find_page(process)
    state = wait_for_state(page, lambda state: [_steps(row) for row in state["rows"]] == [40, 40])
    assert (state["world_size"], state["heard"], state["verdict"]) == (2, 2, "")
    assert "loss 0.5 of rank 0" in state["lines"]
    assert "loss 0.5 of rank 1" not in state["lines"]
    samples = read_metrics(fetch(page + "metrics"))
    host = socket.gethostname()
    assert samples[f'undertow_steps_total{{rank="1",host="{host}"}}'] == 40
    assert samples[f'undertow_rank_up{{rank="0",host="{host}"}}'] == 1
    with urllib.request.urlopen(page + "events", timeout=HANG_S) as events:
        (cli.folder / "enough").touch()
        told = [json.loads(line[6:]) for line in events if line.startswith(b"data: ")]
    assert told[0]["verdict"] == ""
    assert (told[-1]["verdict"], told[-1]["steps"]) == ("done", 42)
    assert [row["state"] for row in told[-1]["rows"]] == ["ended", "ended"]
    result = cli.finish(process)
    # Without --live the output is what it always is.
    assert sorted(result.stdout.splitlines()) == ["[rank 0] loss 0.5 of rank 0", "[rank 1] loss 0.5 of rank 1"]
    assert result.returncode == 0


def test_a_launcher_that_was_killed_leaves_no_folder_behind(cli: Cli) -> None:
    process = cli.start(
        "run", "--live-port", 0, "-n", 1, cli.write(TRAIN + "    print(os.environ['UNDERTOW_LIVE'])" + UNTIL_TOLD)
    )
    page = find_page(process)
    lines = wait_for_state(page, lambda state: any("undertow-live-" in line for line in state["lines"]))["lines"]
    folder = Path(next(line for line in lines if "undertow-live-" in line)).parent
    assert folder.is_dir()
    process.kill()
    wait_until(lambda: not folder.exists())
    process.communicate()


def _steps(row: dict[str, dict[str, int] | None]) -> int:
    return row["pulse"]["steps"] if row["pulse"] else 0


def test_the_first_host_sees_the_ranks_of_all_hosts(cli: Cli) -> None:
    script = cli.write(TRAIN + UNTIL_TOLD)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    hosts = ("--nnodes", 2, "--master-port", port, "--live-port", 0, "--node-rank")
    cli.environment["UNDERTOW_TOKEN"] = "shared"
    first, second = (cli.start("run", *hosts, rank, script) for rank in (0, 1))
    seen = wait_for_state(find_page(first), lambda state: state["heard"] == 2)
    own = wait_for_state(find_page(second), lambda state: state["heard"] == 1)
    assert [row["rank"] for row in seen["rows"]] == [0, 1]
    assert [row["rank"] for row in own["rows"]] == [1]
    (cli.folder / "enough").touch()
    assert [cli.finish(process).returncode for process in (first, second)] == [0, 0]


def test_last_words_and_exit_code_are_as_without(cli: Cli) -> None:
    script = cli.write(TRAIN + FAIL)
    plain = cli.run("run", "-n", 2, "--quiet-ranks", script)
    live = cli.run("run", "--live", "--live-port", 0, "-n", 2, script)
    assert plain.returncode == live.returncode == 1
    assert plain.stderr.splitlines()[-1] == "ValueError: the very first cause"
    assert _last_words(live.stderr) == _last_words(plain.stderr)


def _last_words(stderr: str) -> str:
    found = re.search(r"^rank 1 \(host \S+\) failed first", stderr, re.MULTILINE)
    assert found, stderr
    return stderr[found.start() :].replace(LATE, "")


def test_a_port_in_use_is_wrong_usage_and_nothing_is_started(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = cli.run("run", "--live-port", port, cli.write("mark('started')"))
    assert result.returncode == 2
    words = f"undertow run: --live-port: 127.0.0.1:{port}: Address already in use (port 0 takes any free one)\n"
    assert result.stderr == words
    assert not (cli.folder / "started").exists()


def test_a_port_that_is_none_is_wrong_usage(cli: Cli) -> None:
    result = cli.run("run", "--live-port", 65536, cli.write(""))
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "--live-port 65536 is not possible: give a port, 1 to 65535" in result.stderr


def test_an_outer_jobs_launcher_is_not_told_of_an_inner_one(cli: Cli) -> None:
    script = cli.write("mark('address', os.environ['UNDERTOW_LIVE'])")
    cli.environment["UNDERTOW_LIVE"] = "/nowhere"
    assert cli.run("run", script).returncode == 0
    assert (cli.folder / "address").read_text() == ""


def test_a_job_goes_on_when_nobody_listens_to_its_reports(cli: Cli) -> None:
    script = cli.write("os.environ['UNDERTOW_LIVE'] = '/nowhere/reports'" + TRAIN.replace("\n    ", "\n"))
    result = cli.run("run", "--live", "-n", 2, script)
    assert (result.returncode, result.stdout) == (0, "loss 0.5 of rank 0\n")
    assert result.stderr == "a warning\n"
