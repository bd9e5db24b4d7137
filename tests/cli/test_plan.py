"""`undertow plan`: the table, the JSON, and the mistakes a user makes."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import Cli
from undertow.plan.plan import read_plan
from undertow.plan.scheme import Scheme

VGG = ("plan", "--model", "vgg19", "--hosts", "16", "--bandwidth", "2gbit", "--batch", "32")


def test_a_table_says_scheme_bytes_and_reason_of_every_tensor(cli: Cli) -> None:
    cli.environment["COLUMNS"] = "200"
    result = cli.run(*VGG)
    assert result.returncode == 0, result.stderr
    row = next(line for line in result.stdout.splitlines() if "fc6.weight" in line)
    assert row.split()[:7] == ["fc6.weight", "4096", "x", "25088", "factors", "56", "MB"]
    assert "220  56 MB instead of 771 MB with K = 32" in row  # P* of the paper
    assert result.stdout.count("has no other lossless way") == 35
    assert "predicted step:" in result.stdout
    assert "each scheme alone, wherever it is possible: dense" in result.stdout


def test_json_is_the_plan_itself(cli: Cli) -> None:
    result = cli.run(*VGG, "--json")
    assert result.returncode == 0, result.stderr
    choices = {choice["tensor"]: choice for choice in json.loads(result.stdout)["choices"]}
    assert choices["fc7.weight"]["scheme"] == "factors"


def test_a_plan_is_written_and_can_be_read(cli: Cli) -> None:
    result = cli.run(*VGG, "--policy", "poseidon", "--out", cli.folder / "plan.json")
    assert result.returncode == 0, result.stderr
    plan = read_plan(cli.folder / "plan.json")
    assert plan.policy == "poseidon"
    assert plan.schemes["fc8.weight"] is Scheme.FACTORS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "vgg"), "unknown model 'vgg'"),
        (("--model", "vgg19", "--hosts", "0"), "a cluster of 0 workers is not possible"),
        (("--model", "vgg19", "--batch", "0"), "a batch of 0 is not possible"),
        (("--model", "vgg19", "--bandwidth", "fast"), "'fast' is not a bandwidth"),
        (("--model", "vgg19", "--policy", "best"), "no plan 'best': use one of auto, poseidon, dense"),
        (("--model", "vgg19", "--out", "/nowhere/plan.json"), "cannot write the plan /nowhere/plan.json"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    result = cli.run("plan", *arguments)
    assert result.returncode in (1, 2)
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
