"""`undertow bench` before it measures: help, lists, plans, comparisons, and what it refuses in one line."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Cli
from tests.support.report_samples import results, sweep, timed
from undertow.cli import main, measuring
from undertow.observe.report.points import write_results
from undertow.tools.lab.bench.series import Series
from undertow.tools.lab.real import REAL_NAMES
from undertow.tools.lab.systems import list_systems
from undertow.tools.zoo import MODELS

# The package has a function of this name too.
bench_command = importlib.import_module("undertow.cli.bench")

OPTIONS = (
    "--model --hosts --bandwidth --scale --systems --batch --rounds --lap --preset --out --unshaped --compare --list"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "folder.json").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((measuring, "run_isolated"), (bench_command, "run_bench")):
        monkeypatch.setattr(module, name, lambda *given, **options: pytest.fail("it went ahead"))


def call(*arguments: str) -> object:
    """Run the command in this process, and return its exit code."""
    with pytest.raises(SystemExit) as end:
        main(["bench", *arguments])
    return end.value.code


def test_help_has_every_option_and_examples(cli: Cli) -> None:
    result = cli.run("bench", "--help")
    assert result.returncode == 0
    for option in (*OPTIONS.split(), "--debug"):
        assert option in result.stdout
    assert "undertow bench --model resnet50 --hosts 4" in result.stdout
    assert "undertow bench --compare before.json after.json" in result.stdout


def test_the_list_has_every_model_task_and_system(cli: Cli) -> None:
    result = cli.run("bench", "--list")
    assert result.returncode == 0
    for name in (*MODELS, *REAL_NAMES, *list_systems()):
        assert name in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--model resnet5000", "unknown model 'resnet5000'; did you mean 'resnet50'?"),
        ("--model ,", "nothing to measure"),
        ("--systems ddp,magic", "unknown system 'magic'; known: ddp, undertow"),
        ("--systems ,", "--systems is empty"),
        ("--systems undertow-no-magic", "unknown system 'undertow-no-magic'"),
        ("--preset slow", "unknown preset 'slow'; known: quick, papers"),
        ("--hosts 1", "--hosts 1: at least two"),
        ("--hosts 0", "--hosts 0 is not possible"),
        ("--hosts many", "--hosts many is not a whole number: give 1 to 1024 hosts"),
        ("--hosts 2.5", "--hosts 2.5 is not a whole number"),
        ("--hosts 2,300", "300 hosts are not possible: the lab has 1 to 250"),
        ("--hosts ,", "is not a number of hosts"),
        ("--hosts 2 4", "'4' is not an option; two files go with --compare"),
        ("--bandwidth fast", "'fast' is not a bandwidth: write it as 1gbit"),
        ("--bandwidth 1,,2gbit", "'gbit' is not a bandwidth"),
        ("--bandwidth 0gbit", "a bandwidth of '0gbit' is not possible"),
        ("--scale 0", "--scale 0 is not possible"),
        ("--scale nan", "--scale nan is not possible"),
        ("--scale much", "--scale"),
        ("--model gpt --scale 10", "gpt computes for real and cannot be scaled"),
        ("--rounds 1", "--rounds 1 is not possible: give 2 to 10000 rounds"),
        ("--rounds few", "--rounds"),
        ("--batch 0", "--batch 0 is not possible"),
        ("--lap 0", "--lap 0 is not possible"),
        ("--lap inf", "--lap inf is not possible"),
        ("--out bench.txt", "--out bench.txt: the name must end with .json"),
        ("--out bench", "--out bench: the name must end with .json"),
        ("--out nowhere/bench.json", "--out nowhere/bench.json: the folder nowhere does not exist"),
        ("--out folder.json", "--out folder.json is a folder"),
        ("before.json", "'before.json' is not an option; two files go with --compare"),
        ("--fast", "--fast"),
        ("--compare", "--compare needs two files"),
        ("--compare one.json", "--compare needs two files"),
        ("--compare one.json two.json three.json", "--compare needs two files"),
        ("--compare nowhere.json nowhere.json", "results cannot be read from nowhere.json: No such file"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_usage_is_one_line_and_code_2(capfd: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    assert call(*arguments.split()) == 2
    said = capfd.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_wrong_usage_ends_the_process_with_it(cli: Cli) -> None:
    result = cli.run("bench", "--hosts", "1")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("undertow bench: --hosts 1: at least two")


def test_a_system_that_cannot_run_here_is_refused_with_the_reason(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "horovod" else object())
    assert call("--systems", "ddp,horovod") == 2
    assert capfd.readouterr().err == "undertow bench: system 'horovod' cannot run here: horovod is not installed\n"


def test_without_emulated_hosts_there_is_a_way_out(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "find_obstacle", lambda: "emulated hosts need root; try it with sudo")
    assert call() == 2
    assert capfd.readouterr().err == (
        "undertow bench: emulated hosts need root; try it with sudo. "
        "To measure without emulated hosts, add --unshaped\n"
    )


def test_debug_shows_the_traceback(cli: Cli) -> None:
    result = cli.run("bench", "--debug", "--model", "resnet5000")
    assert result.returncode != 0
    assert "Traceback" in result.stderr
    assert "ConfigError: unknown model" in result.stderr


# Plans


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Series]]:
    """Collect plans instead of measuring them."""
    made: list[Sequence[Series]] = []

    def note(name: str, measure: Any, show: Any, *, is_unshaped: bool) -> int:
        made.append(*measure.args)
        return 0

    monkeypatch.setattr(bench_command, "measure_in_lab", note)
    return made


def test_every_model_is_measured_with_every_number_of_hosts(plans: Any) -> None:
    assert (
        call("--model", "vgg19, alexnet,vgg19", "--hosts", "2,8", "--bandwidth", "400,1000mbit", "--scale", "20") == 0
    )
    [plan] = plans
    assert [(series.model, series.hosts) for series in plan] == [
        ("vgg19", 2),
        ("vgg19", 8),
        ("alexnet", 2),
        ("alexnet", 8),
    ]
    for series in plan:
        assert series.bandwidths_gbit == pytest.approx((0.4, 1.0))
        assert (series.scale, series.systems) == (20.0, ("ddp", "undertow"))


def test_options_reach_the_plan(plans: Any) -> None:
    assert call("--systems", "undertow-no-slicing", "--rounds", "3", "--lap", "0.5", "--batch", "4") == 0
    [[series]] = plans
    assert (series.systems, series.rounds, series.lap_s, series.batch) == (("undertow-no-slicing",), 3, 0.5, 4)


@pytest.mark.parametrize("arguments", [["--model", "vgg19,alexnet"], ["--preset", "quick"], ["--preset", "papers"]])
def test_unshaped_points_have_no_bandwidth(plans: Any, arguments: list[str]) -> None:
    assert call("--unshaped", *arguments) == 0
    [plan] = plans
    assert {series.bandwidths_gbit for series in plan} == {(None,)}


def test_a_preset_is_a_plan(plans: Any) -> None:
    assert call("--preset", "quick") == 0
    [plan] = plans
    assert all(None not in series.bandwidths_gbit for series in plan)


# Comparisons


def test_two_files_are_compared(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_results(results(sweep((10.0,))), folder / "a.json")
    write_results(results([timed(2.0, system="ddp"), timed(0.4, bandwidth_gbit=1.0)]), folder / "b.json")
    assert call("--compare", "a.json", "b.json") == 0
    said = capfd.readouterr()
    assert said.err == ""
    for words in ("slower", "gone", "new", "before", "after", "verdict", "reason"):
        assert words in said.out


def test_the_wrong_file_is_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_results(results(sweep((10.0,))), folder / "a.json")
    (folder / "b.json").write_text("{}")
    assert call("--compare", "a.json", "b.json") == 2
    said = capfd.readouterr().err
    assert said.startswith("undertow bench: b.json is not a results file of undertow")
    assert said.count("\n") == 1
