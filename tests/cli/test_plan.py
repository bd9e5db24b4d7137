"""`undertow plan`: the table, the JSON, and the mistakes a user makes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Cli, is_alive, wait_until
from undertow.plan.measured import Measured, read_measured
from undertow.plan.plan import read_plan
from undertow.plan.profile import LayerProfile, Profile, TensorProfile
from undertow.plan.scheme import Scheme

VGG = ("plan", "--model", "vgg19", "--hosts", "16", "--bandwidth", "2gbit", "--batch", "32")


def test_a_table_says_scheme_bytes_and_reason_of_every_tensor(cli: Cli) -> None:
    cli.environment["COLUMNS"] = "200"
    result = cli.run(*VGG)
    assert result.returncode == 0, result.stderr
    row = next(line for line in result.stdout.splitlines() if "fc6.weight" in line)
    assert row.split()[:7] == ["fc6.weight", "4096", "x", "25088", "factors", "56", "MB"]
    assert "220  56 MB instead of 771 MB with K = 32" in row  # P* of the paper
    assert result.stdout.count("has no other lossless scheme") == 35
    assert "predicted step:" in result.stdout
    assert "each scheme alone, wherever it is possible: dense" in result.stdout


def test_json_is_the_plan_itself(cli: Cli) -> None:
    result = cli.run(*VGG, "--json")
    assert result.returncode == 0, result.stderr
    choices = {choice["tensor"]: choice for choice in json.loads(result.stdout)["choices"]}
    assert choices["fc7.weight"]["scheme"] == "factors"


SCRIPT = """
import sys, torch, undertow, undertow.torch
undertow.init()
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = undertow.torch.parallelize(model, optimizer)
print("with", sys.argv[1:])
for step in range(int(sys.argv[1])):
    model(torch.ones(8, 512)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("to the end")
"""


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.CompletedProcess[str]]]:
    """A script that was run once for a few steps: its profile, and how the command ended."""
    cli = Cli(tmp_path_factory.mktemp("planned"))
    (cli.folder / "train.py").write_text(SCRIPT)
    script, profile = cli.folder / "train.py", cli.folder / "train.json"
    options = ("--hosts", "8", "--bandwidth", "1gbit", "--json")
    yield profile, cli.run("plan", *options, script, "1000000", "--save-profile", profile, "--x")
    for process in cli.started:
        process.kill()
        process.wait()


def test_a_script_is_run_for_a_few_steps_and_planned(planned: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, result = planned
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)  # what the script prints is not in it
    assert "with ['1000000', '--x']" in result.stderr
    assert plan["workers"] == 8
    choices = {choice["tensor"]: choice for choice in plan["choices"]}
    # Which of the two is decided by how long products take on this machine now.
    bytes_out = {"factors": 7 * 8 * (512 + 512) * 4, "factors-to-shard": 7 / 8 * (8 * (512 + 8 * 512) + 512 * 512) * 4}
    assert choices["0.weight"]["bytes_out"] == bytes_out[choices["0.weight"]["scheme"]]
    assert choices["2.weight"]["scheme"] == "dense"
    assert plan["compute_s"] > 0


def test_what_was_measured_is_kept_on_demand(planned: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    path, result = planned
    measured = read_measured(path)
    assert [tensor.name for tensor in measured.profile.tensors] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert measured.profile.tensors[0].rows == 8
    assert measured.has_gates
    assert measured.profile.compute_s == json.loads(result.stdout)["compute_s"]


def test_a_kept_profile_gives_the_same_plan_without_the_script(
    planned: tuple[Path, subprocess.CompletedProcess[str]], cli: Cli
) -> None:
    path, first = planned
    again = cli.run("plan", "--hosts", "8", "--bandwidth", "1gbit", "--json", "--profile", path)
    assert (again.returncode, again.stderr, again.stdout) == (0, "", first.stdout)
    other = cli.run("plan", "--hosts", "2", "--bandwidth", "40gbit", "--profile", path)
    assert f"{path}, 2 hosts, 40 Gbit/s" in "".join(other.stdout.splitlines()), other.stderr


def test_a_profile_says_whether_there_are_gates(cli: Cli) -> None:
    """With them the first layer does not wait for the gradient of the last one."""
    tensor = TensorProfile(name="0.weight", shape=(1000, 1000))
    last = LayerProfile(name="0", tensors=(tensor,), forward_s=0.02, backward_s=0.02)
    first = LayerProfile(name="first", tensors=(), forward_s=0.02, backward_s=0.02)
    steps = []
    for has_gates in (False, True):
        figures = {"flops_per_s": 1e10, "shard_flops_per_s": 1e10, "add_bytes_per_s": 1e9, "has_gates": has_gates}
        Measured(profile=Profile(layers=(first, last)), **figures).write(cli.folder / "x.json")
        result = cli.run("plan", "--bandwidth", "1gbit", "--profile", cli.folder / "x.json", "--json")
        assert result.returncode == 0, result.stderr
        steps.append(json.loads(result.stdout)["step_s"])
    assert steps[0] == pytest.approx(steps[1] + 0.02, rel=0.01)


def test_help_has_the_options_of_profiles(cli: Cli) -> None:
    cli.environment["COLUMNS"] = "200"
    text = cli.run("plan", "--help").stdout
    for words in ("--profile", "--save-profile", "--profile train.json", "--save-profile train.json train.py"):
        assert words in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("print('nothing')", "ended before its first steps were measured"),
        ("raise ValueError('broken')", "failed with code 1 before its first steps were measured"),
    ],
)
def test_a_script_without_steps_is_an_error_that_says_what_it_takes(cli: Cli, text: str, words: str) -> None:
    (cli.folder / "train.py").write_text(text)
    result = cli.run("plan", cli.folder / "train.py")
    assert result.returncode == 1
    assert words in result.stderr
    assert "undertow.torch.parallelize" in result.stderr


def test_a_plan_is_written_and_can_be_read(cli: Cli) -> None:
    result = cli.run(*VGG, "--policy", "poseidon", "--out", cli.folder / "plan.json")
    assert result.returncode == 0, result.stderr
    plan = read_plan(cli.folder / "plan.json")
    assert plan.policy == "poseidon"
    assert plan.schemes["fc8.weight"] is Scheme.FACTORS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give a script, or --model"),
        (("--model", "vgg19", "train.py"), "give a script, or --model"),
        (("--profile", "x.json", "train.py"), "or --profile with a file"),
        (("--profile", "nowhere.json"), "cannot read the profile nowhere.json: No such file"),
        (("--profile", __file__), "test_plan.py is not a profile of undertow: "),
        (("--profile", "x.json", "--batch", "3"), "--batch is for models of the zoo"),
        (("--model", "vgg19", "--save-profile", "x.json"), "--save-profile x.json saves the measurements of a script"),
        (("--save-profile", "/nowhere/x.json", "train.py"), "the folder /nowhere does not exist"),
        (("--save-profile", "/", "train.py"), "--save-profile / is a folder"),
        (("train.py", "--save-profile", "/nowhere/x.json"), "the folder /nowhere does not exist"),
        (("train.py", "--save-profile=/"), "--save-profile / is a folder"),
        (("train.py", "--epochs", "3", "--save-profile"), "--save-profile needs the name of a file"),
        (("nowhere.py",), "there is no script nowhere.py"),
        (("--batch", "3", "train.py"), "--batch is for models of the zoo"),
        (("--model", "vgg"), "unknown model 'vgg'"),
        (("--model", "vgg19", "--hosts", "0"), "--hosts 0 is not possible"),
        (("--model", "vgg19", "--batch", "0"), "--batch 0 is not possible"),
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


def test_a_plan_that_is_killed_leaves_no_folder_and_no_job(cli: Cli) -> None:
    cli.environment["TMPDIR"] = str(cli.folder)
    script = cli.write("(folder / 'pid').write_text(str(os.getpid()) + '\\n')\ntime.sleep(600)")
    process = cli.start("plan", script)
    [path] = cli.wait_for_files("pid", 1)
    wait_until(lambda: path.read_text().endswith("\n"))
    assert list(cli.folder.glob("undertow-plan-*"))
    process.kill()
    wait_until(lambda: not is_alive(int(path.read_text())) and not list(cli.folder.glob("undertow-plan-*")))
