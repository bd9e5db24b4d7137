"""`undertow bench` with real workers: its output, its files, and what remains if it is interrupted."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Cli, wait_until
from tests.support.labs import find_marked, mark_processes, needs_lab
from undertow.observe.report.points import read_results
from undertow.tools.zoo import find_model

# Every worker imports torch, which takes long on a busy machine.
PATIENCE_S = 150.0
NOBODY = 65534
PR_CAPBSET_DROP = 24

FIELDS = (
    "model hosts bandwidth_gbit scale system iteration_s compute_s bound_s speedup gain_over_ddp "
    "bytes_out_per_host cpu_s"
)
HEADINGS = "Gbit/s system iteration compute speed-up gain bound out/host CPU"


@dataclass(frozen=True)
class Run:
    """A bench that has ended."""

    code: int
    out: str
    err: str
    json: Path
    left: list[int]

    @property
    def points(self) -> list[dict[str, Any]]:
        return json.loads(self.json.read_text())["points"]


def finish(cli: Cli, process: subprocess.Popen[str], path: Path) -> Run:
    out, err = process.communicate(timeout=PATIENCE_S)
    return Run(process.returncode, out, err, path, find_marked(cli))


def open_cli(folder: Path) -> Cli:
    cli = Cli(folder)
    mark_processes(cli)
    return cli


def end(cli: Cli) -> None:
    for process in cli.started:
        process.kill()
        process.wait()


# On emulated hosts


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("shaped")
    cli = open_cli(folder)
    what = "--model googlenet --hosts 2 --bandwidth 40gbit --scale 100 --batch 8 --rounds 2 --lap 0.1"
    yield finish(cli, cli.start("bench", *what.split(), "--out", folder / "x.json"), folder / "x.json")
    end(cli)


@needs_lab
def test_a_bench_succeeds_and_leaves_no_process(shaped: Run) -> None:
    assert shaped.code == 0, shaped.err
    assert shaped.left == []
    assert all(line.startswith("undertow: ") for line in shaped.err.splitlines())


@needs_lab
def test_the_table_has_all_columns_and_systems(shaped: Run) -> None:
    for words in (*HEADINGS.split(), "ddp", "undertow", "googlenet, 2 hosts, batch 8 per host, scale 100"):
        assert words in shaped.out
    assert "…" not in shaped.out  # nothing was cut off


@needs_lab
def test_the_file_has_every_field_of_every_system(shaped: Run) -> None:
    assert [point["system"] for point in shaped.points] == ["ddp", "undertow"]
    for point in shaped.points:
        assert set(FIELDS.split()) <= set(point)
        assert (point["model"], point["hosts"], point["bandwidth_gbit"], point["scale"]) == (
            "googlenet",
            2,
            40.0,
            100.0,
        )
        assert point["compute_s"] == pytest.approx(8 / 257.0)
        assert point["bound_s"] == point["compute_s"]  # 5.6 ms of transfer are hidden under 31 ms
        assert point["speedup"] == pytest.approx(2 * point["compute_s"] / point["iteration_s"])
        assert point["cpu_s"] > 0
        assert point["steps"] >= 6
    ddp, undertow = shaped.points
    assert ddp["gain_over_ddp"] == 1.0
    assert undertow["gain_over_ddp"] == pytest.approx(ddp["iteration_s"] / undertow["iteration_s"])


@needs_lab
def test_bytes_are_those_of_the_scaled_model(shaped: Run) -> None:
    whole = 4 * find_model("googlenet").parameters / 100  # 2 S (P - 1) / P with two hosts
    for point in shaped.points:
        least = 0.8 if point["system"] == "undertow" else 1.0  # the last layer's gradient need not travel whole
        assert least * whole < point["bytes_out_per_host"] < 1.3 * whole


@needs_lab
def test_the_file_can_be_read_and_has_the_command(shaped: Run) -> None:
    found = read_results(shaped.json)
    assert found.command.startswith("undertow bench --model googlenet --hosts 2")
    assert {"undertow", "torch"} <= set(found.versions)
    assert found.notes == []


@needs_lab
def test_a_picture_and_a_page_are_beside_it(shaped: Run) -> None:
    pytest.importorskip("matplotlib")
    page = shaped.json.with_suffix(".html").read_text()
    assert shaped.json.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert all(words in page for words in ("googlenet", "undertow", "ddp"))
    assert f"written: {shaped.json}, " in shaped.err


@needs_lab
def test_written_results_can_be_compared(shaped: Run, cli: Cli) -> None:
    result = cli.run("bench", "--compare", shaped.json, shaped.json)
    assert result.returncode == 0
    assert "+0.0 %" in result.stdout


# Without emulated hosts


def drop_capabilities() -> None:
    """Drop all capabilities between fork and exec, so that root has no privileges."""
    for capability in range(64):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def without_privileges() -> dict[str, Any]:
    """Return options that start a command without root, or as root without privileges if only root can read Python."""
    if os.geteuid() != 0:
        return {}
    other = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    try:
        probe = [sys.executable, "-c", "import undertow.cli"]
        subprocess.run(probe, check=True, capture_output=True, env={**os.environ, "HOME": "/tmp"}, **other)
    except (OSError, subprocess.CalledProcessError):
        return {"preexec_fn": drop_capabilities}
    return other


@pytest.fixture(scope="module")
def unshaped() -> Iterator[Run]:
    """Run a bench without emulated hosts, with a real task."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        cli = open_cli(folder)
        options = without_privileges()
        if "user" in options:
            cli.environment["HOME"] = name
        what = "--model gpt --hosts 2 --systems undertow --batch 1 --rounds 2 --lap 0.1 --unshaped"
        process = cli.start("bench", *what.split(), "--out", folder / "x.json", **options)
        yield finish(cli, process, folder / "x.json")
        end(cli)


def test_without_root_a_bench_succeeds_and_leaves_no_process(unshaped: Run) -> None:
    assert unshaped.code == 0, unshaped.err
    assert unshaped.left == []


def test_every_unshaped_figure_is_marked_so(unshaped: Run) -> None:
    assert "nothing is shaped" in unshaped.err
    assert "Unshaped: all workers communicated over this machine's loopback" in " ".join(unshaped.out.split())
    assert [point["bandwidth_gbit"] for point in unshaped.points] == [None, None]
    assert unshaped.out.count("unshaped") >= 2
    [note] = read_results(unshaped.json).notes
    assert note.startswith("Unshaped: ")
    assert "unshaped" in unshaped.json.with_suffix(".html").read_text().lower()


def test_the_compute_of_a_real_task_is_measured_as_well(unshaped: Run) -> None:
    local, undertow = unshaped.points
    assert (local["system"], undertow["system"]) == ("local", "undertow")
    assert local["compute_s"] == undertow["compute_s"] == local["iteration_s"]
    assert local["speedup"] == pytest.approx(2.0)
    assert undertow["gain_over_ddp"] is None
    assert (undertow["scale"], undertow["batch"]) == (1.0, 1)


# Aborted


def start_to(cli: Cli, words: str, what: str, **options: Any) -> tuple[subprocess.Popen[str], Path]:
    """Start a bench, and wait for this output."""
    said = cli.folder / "said"
    with said.open("w") as file:
        process = cli.start("bench", *what.split(), "--out", cli.folder / "x.json", stderr=file, **options)
    wait_until(lambda: words in said.read_text() or process.poll() is not None)
    assert process.poll() is None, said.read_text()
    return process, said


@needs_lab
def test_an_interrupt_keeps_the_results_and_leaves_no_process(cli: Cli) -> None:
    mark_processes(cli)
    what = "--model googlenet --hosts 2 --systems local --scale 100 --batch 32 --rounds 2 --lap 0.1 --bandwidth "
    process, said = start_to(cli, "30 Gbit/s", what + "40,30,20,15,10,5gbit")
    process.send_signal(signal.SIGINT)
    run = finish(cli, process, cli.folder / "x.json")
    assert run.code != 0
    assert run.left == []
    assert [point["bandwidth_gbit"] for point in run.points] == [40.0]
    assert "local" in run.out
    assert "Aborted: interrupted" in run.out
    assert read_results(run.json).notes == ["Aborted: interrupted"]
    assert said.read_text().endswith("undertow bench: interrupted\n")
    assert "Traceback" not in said.read_text()


def test_an_interrupt_from_a_terminal_keeps_the_results(cli: Cli) -> None:
    """Ctrl-C goes to every process in the terminal's foreground, here also to starting workers."""
    mark_processes(cli)
    what = "--model googlenet,alexnet --hosts 2 --systems local --scale 100 --batch 8 --rounds 2 --lap 0.1 --unshaped"
    process, said = start_to(cli, "alexnet: starting", what, start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)
    run = finish(cli, process, cli.folder / "x.json")
    assert run.code != 0
    assert run.left == []
    assert [point["model"] for point in run.points] == ["googlenet"]
    assert "Traceback" not in said.read_text()
    assert said.read_text().endswith("undertow bench: interrupted\n")
