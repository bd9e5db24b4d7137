"""`undertow faults`: success, repeating one seed, the events of a failure, and usage errors."""

from __future__ import annotations

import importlib
import re
from contextlib import nullcontext

import pytest

from tests.support.bench_fakes import FakeProgress
from tests.support.command import Cli
from undertow.cli import main
from undertow.engine.client.control import GroupControl
from undertow.tools.faults.scenarios import SCENARIOS

# The package has a function of this name too.
faults_command = importlib.import_module("undertow.cli.faults")


def test_help_has_every_option_and_an_example(cli: Cli) -> None:
    result = cli.run("faults", "--help")
    assert result.returncode == 0
    assert "undertow faults --seed 1234 --story" in result.stdout
    for option in ("--seeds", "--first", "--seed", "--scenario", "--story", "--list", "--debug"):
        assert option in result.stdout


def test_the_list_has_every_scenario_and_its_claim(cli: Cli) -> None:
    result = cli.run("faults", "--list")
    assert result.returncode == 0
    assert result.stdout.splitlines() == [f"{one.name:<18}  {one.claim}" for one in SCENARIOS]


def test_seeds_that_hold_are_counted(cli: Cli) -> None:
    result = cli.run("faults", "--seeds", "12", "--first", "40", "--scenario", "killed")
    assert result.returncode == 0
    assert all(line.startswith("undertow: running 12 seeds: ") for line in result.stderr.splitlines())
    assert result.stdout == "12 seeds, 40 to 51: everything held\nkilled 12\n"


def test_every_seed_advances_the_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    progress = FakeProgress()
    monkeypatch.setattr(faults_command, "open_progress", lambda: nullcontext(progress))
    assert run_here(capsys, "--seeds", "3", "--first", "7")[0] == 0
    assert (progress.expected, progress.done) == (3, 3)
    assert progress.said == [f"running 3 seeds: {seed}" for seed in (7, 8, 9)]


def test_one_seed_is_summarised_and_story_prints_all_events(cli: Cli) -> None:
    short, long = cli.run("faults", "--seed", "5"), cli.run("faults", "--seed", "5", "--story")
    assert (short.returncode, long.returncode) == (0, 0)
    match = re.fullmatch(r"seed 5, \S+, (\d+) events: everything held\n", short.stdout)
    assert match
    assert long.stdout.endswith(short.stdout)
    assert len(long.stdout.splitlines()) > int(match[1])
    assert long.stdout.startswith("job 7: ")


def test_a_story_does_not_depend_on_the_hash_seed(cli: Cli) -> None:
    stories = set()
    for hash_seed in ("1", "2"):
        cli.environment["PYTHONHASHSEED"] = hash_seed
        stories.add(cli.run("faults", "--seed", "7", "--scenario", "restart", "--story").stdout)
    assert len(stories) == 1


def run_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(["faults", *arguments])
    return exit_info.value.code, capsys.readouterr().out


def test_a_failure_shows_the_claim_the_events_and_how_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(GroupControl, "_report_loss", lambda self, loss: None)  # no loss is reported
    code, out = run_here(capsys, "--scenario", "killed", "--seeds", "50")
    lines = out.splitlines()
    assert code == 1
    match = re.fullmatch(r"seed (\d+), killed: (deadlock: rank .* waits for .*)", lines[0])
    assert match
    assert any("is killed; it was waiting for" in line for line in lines)
    assert len(lines) <= 90
    assert lines[-2] == f"broken: {match[2]}"
    assert lines[-1].startswith(f"replay: undertow faults --seed {match[1]}")

    code, again = run_here(capsys, *lines[-1].removeprefix("replay: undertow faults ").split())
    assert (code, again) == (1, out)
    code, whole = run_here(capsys, *lines[-1].removeprefix("replay: undertow faults ").split(), "--story")
    assert code == 1
    assert len(whole.splitlines()) > len(lines)


def test_skipped_scenarios_are_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("undertow.tools.faults.scenarios.seeds.importlib.util.find_spec", lambda name: None)
    code, out = run_here(capsys, "--scenario", "gates", "--seeds", "3")
    assert code == 0
    assert out.splitlines()[:2] == ["gates was skipped: torch is not installed", "0 seeds, 0 to 2: everything held"]
    code, out = run_here(capsys, "--scenario", "gates", "--seed", "3")
    assert (code, out) == (0, "seed 3, gates, was skipped: torch is not installed\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scenario", "flood"], "there is no scenario 'flood'; there are schedule, credit"),
        (["--seeds", "0"], "--seeds 0 is not possible: give 1 to 1000000000 seeds"),
        (["--story"], "--story prints the events of one seed: give it with --seed"),
        (["--seed", "many"], "--seed"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(cli: Cli, arguments: list[str], words: str) -> None:
    result = cli.run("faults", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
