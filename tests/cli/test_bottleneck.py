"""`undertow bottleneck`: the formula, the table, the JSON, and usage errors."""

from __future__ import annotations

import json

import pytest

from tests.support.command import Cli

ALEXNET = ("bottleneck", "--params", "61.5M", "--iteration", "0.25s", "--hosts", "8")


def test_help_has_every_option_and_examples(cli: Cli) -> None:
    result = cli.run("bottleneck", "--help")
    assert result.returncode == 0
    for words in ("--params", "--iteration", "--model", "--hosts", "--bytes-per-param", "--json", "--debug"):
        assert words in result.stdout
    assert "undertow bottleneck --params 61.5M --iteration 0.25s --hosts 8" in result.stdout
    assert "bottleneck" in cli.run("--help").stdout


def test_the_answer_comes_with_its_formula_and_every_grade(cli: Cli) -> None:
    result = cli.run(*ALEXNET)
    assert result.returncode == 0, result.stderr
    for words in (
        "61.5 M / 0.25 s = 246 M floats/s",
        "out of a host    2 x 7/8 x 246 M = 430.5 M floats/s = 13.8 Gbit/s",
        "into a host      2 x 7/8 x 246 M = 430.5 M floats/s = 13.8 Gbit/s",
        "both together    4 x 7/8 x 246 M = 861 M floats/s = 27.6 Gbit/s",
        "7/8 of its gradients to the other shards, and as much again",
        "fast enough if it carries at least 13.8 Gbit/s each way",
        "Up to 10 Gbit/s the network is the limit; from 25 Gbit/s on it can be hidden.",
    ):
        assert words in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line.rstrip().endswith(("limit", "hidden"))]
    assert [row[0] for row in rows] == ["1", "2.5", "5", "10", "25", "40", "50", "100"]
    assert " ".join(rows[3]) == "10 Gbit/s 312.5 M 344 138 % 2.38 x 1.38 x the limit"
    assert " ".join(rows[4]) == "25 Gbit/s 781.25 M 138 55 % 1.55 x 1.00 x hidden"
    assert result.stderr == ""


def test_a_model_of_the_zoo_brings_its_own_numbers(cli: Cli) -> None:
    result = cli.run("bottleneck", "--model", "resnet50", "--hosts", "4", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["job"] == {
        "params": 25_557_032.0,
        "iteration_s": pytest.approx(32 / 110),
        "hosts": 4,
        "bytes_per_param": 4,
    }
    five = next(grade for grade in found["grades"] if grade["gbit_per_s"] == 5)
    assert five["verdict"] == "hidden only with overlap into the next forward pass"


def test_a_model_with_the_users_own_times(cli: Cli) -> None:
    result = cli.run("bottleneck", "--model", "resnet50", "--iteration", "100ms", "--bytes-per-param", "2", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["job"] == {
        "params": 25_557_032.0,
        "iteration_s": 0.1,
        "hosts": 4,
        "bytes_per_param": 2,
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give --params and --iteration, or --model"),
        (("--params", "1M"), "give --params and --iteration, or --model"),
        (("--model", "vgg19", "--params", "1M"), "give --params and --iteration, or --model"),
        (("--model", "vgg"), "unknown model 'vgg'; did you mean 'vgg19'?"),
        ((*ALEXNET[1:5], "--hosts", "0"), "--hosts 0 is not possible: give 2 to 65536 hosts"),
        (("--params", "61.5X", "--iteration", "1s"), "--params '61.5X' is not a number: write it as 61.5M"),
        (("--params=-1M", "--iteration", "1s"), "--params -1M is not possible: give 1 to"),
        (("--params", "1M", "--iteration", "1h"), "--iteration '1h' is not a time: write it as 0.25s"),
        (("--params", "1M", "--iteration", "0s"), "--iteration 0s is not possible"),
        (
            (*ALEXNET[1:], "--bytes-per-param", "0"),
            "--bytes-per-param 0 is not possible: give 1 to 16 bytes",
        ),
        ((*ALEXNET[1:], "--fast"), "--fast"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    result = cli.run("bottleneck", *arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
