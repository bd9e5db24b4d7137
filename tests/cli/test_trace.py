"""`undertow run --trace`: files that viewers can open, however the job ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.command import Cli, wait_until
from tests.support.perfetto import find_faults, read_events

# A model that trains until it is stopped.
TRAIN = """
    import torch, undertow, undertow.torch
    undertow.init()
    model = undertow.torch.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    while steps < STEPS:
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        steps += 1
"""


def script(cli: Cli, steps: str = "5") -> Path:
    return cli.write(TRAIN.replace("STEPS", steps))


def test_a_job_leaves_one_file_per_rank_and_one_for_viewers(cli: Cli) -> None:
    folder = cli.folder / "deep" / "trace"
    result = cli.run("run", "-n", 2, "--trace", folder, script(cli))
    assert result.returncode == 0, result.stderr
    assert f"the trace of 2 ranks is {folder / 'trace.json'}" in result.stderr
    assert f"undertow report {folder}" in result.stderr
    events = read_events(folder / "trace.json")
    assert find_faults(events) == []
    assert [event["args"]["name"][:6] for event in events if event["name"] == "process_name"] == ["rank 0", "rank 1"]
    hooks = [event for event in events if event.get("cat") == "hook" and event["args"]["tensor"] == "weight"]
    assert len(hooks) == 2 * 5


def test_traces_of_an_earlier_job_are_removed_and_nothing_else(cli: Cli) -> None:
    folder = cli.folder / "trace"
    folder.mkdir()
    (folder / "rank-9.json").write_text('[\n{"ph":"M","name":"process_name","pid":9}\n]\n')
    (folder / "rank-8.json").write_text('{"mine": true}')
    (folder / "notes.txt").write_text("mine too")
    result = cli.run("run", "--trace", folder, "--trace-steps", 2, script(cli))
    assert result.returncode == 0, result.stderr
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["notes.txt", "rank-0.json", "rank-8.json", "trace.json"]


def test_traces_that_cannot_be_merged_do_not_fail_the_job(cli: Cli) -> None:
    folder = cli.folder / "trace"
    (folder / "trace.json").mkdir(parents=True)
    result = cli.run("run", "--trace", folder, script(cli))
    assert result.returncode == 0, result.stderr
    assert "could not be merged for viewers: Is a directory" in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.json", "trace.json"]


def test_an_old_trace_is_not_mistaken_for_a_new_one(cli: Cli) -> None:
    folder = cli.folder / "trace"
    assert cli.run("run", "--trace", folder, script(cli)).returncode == 0
    assert cli.run("run", "--trace", folder, cli.write("pass")).returncode == 0
    assert list(folder.iterdir()) == []


def test_a_killed_worker_leaves_its_trace_so_far(cli: Cli) -> None:
    folder = cli.folder / "trace"
    source = script(cli, "float('inf')")
    process = cli.start("run", "-n", 2, "--trace", folder, "--trace-steps", "all", source)
    own = folder / "rank-1.json"
    wait_until(lambda: own.exists() and b'"optimizer"' in own.read_bytes())
    worker = next(
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/environ")
        if b"RANK=1\0" in _read(path) and str(source).encode() in _read(path.parent / "cmdline")
    )
    os.kill(worker, signal.SIGKILL)
    result = cli.finish(process)
    assert result.returncode != 0
    assert "rank 1" in result.stderr
    assert "killed by SIGKILL" in result.stderr
    lines = own.read_text().splitlines()
    assert json.loads(lines[1].rstrip(","))["args"]["name"].startswith("rank 1")
    assert not any("undertow.end" in line for line in lines)  # it was cut off
    events = read_events(folder / "trace.json")
    assert {event["pid"] for event in events if event.get("cat") == "hook"} == {0, 1}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_script_without_undertow_leaves_no_trace_and_a_notice(cli: Cli) -> None:
    result = cli.run("run", "--trace", cli.folder / "trace", cli.write("pass"))
    assert (result.returncode, result.stdout) == (0, "")
    assert "there is no trace in" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--trace", "/dev/null/trace"], "the trace cannot be written to /dev/null/trace"),
        (["--trace", "trace", "--trace-steps", "ten"], "trace steps 'ten'"),
    ],
)
def test_impossible_trace_options_are_refused_in_one_line(cli: Cli, options: list[str], words: str) -> None:
    result = cli.run("run", *options, cli.write("pass"))
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_init_accepts_a_trace_folder(cli: Cli) -> None:
    source = cli.write(
        """
        import undertow
        undertow.init(trace=str(folder / "own"), trace_steps="3")
        undertow.barrier()
        """
    )
    assert cli.run("run", source).returncode == 0
    names = [event["name"] for event in read_events(cli.folder / "own" / "rank-0.json")]
    assert names[:3] == ["process_name", "process_sort_index", "undertow"]


def test_a_simulated_run_writes_the_same_files(cli: Cli) -> None:
    folder = cli.folder / "trace"
    result = cli.run("simulate", "--model", "alexnet", "--hosts", 2, "--bandwidth", "4gbit", "--trace", folder)
    assert result.returncode == 0, result.stderr
    assert "the trace of undertow is" in result.stderr
    assert find_faults(read_events(folder / "trace.json")) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hosts", "2,4"], "--trace records one cluster"),
        (["--hosts", "2", "--share", "vgg19"], "--trace records one job"),
        (["--hosts", "2", "--find-bandwidth", "90%"], "leave --cluster, --out and --trace out"),
    ],
)
def test_a_simulated_trace_is_of_one_cluster_and_one_job(cli: Cli, options: list[str], words: str) -> None:
    result = cli.run("simulate", "--model", "alexnet", "--trace", "trace", *options)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
