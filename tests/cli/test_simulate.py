"""`undertow simulate`: tables, files, searches, and usage errors."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.bench_fakes import FakeProgress
from tests.support.command import Cli
from tests.support.report_samples import results, timed
from undertow.cli import main
from undertow.observe.report.points import read_results, write_results
from undertow.plan.measured import Measured
from undertow.plan.profile import LayerProfile, Profile, TensorProfile
from undertow.tools.sim.schedules import list_schedules

SYSTEMS = ["ps", "wfbp", "ddp", "p3", "undertow"]
RESNET = ("--model", "resnet50", "--hosts", "1,2,4", "--bandwidth", "4gbit", "--systems", ",".join(SYSTEMS))
PLAIN = ("--model", "resnet50", "--systems", "plain")


class Ended(NamedTuple):
    code: object
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """Return the rows of the table, below its line and up to the next gap."""
        lines = iter(self.out.splitlines())
        below = itertools.dropwhile(lambda line: "───" not in line, lines)
        return [line.split() for line in itertools.takewhile(str.strip, itertools.islice(below, 1, None))]


Simulate = Callable[..., Ended]


@pytest.fixture
def simulate(capfd: pytest.CaptureFixture[str]) -> Simulate:
    """Run the command in this process, because another one would spend most of its time on imports."""

    def run(*arguments: object) -> Ended:
        code: object = None
        with contextlib.suppress(SystemExit):
            try:
                main(["simulate", *map(str, arguments)])
            except SystemExit as ended:
                code = ended.code
                raise
        return Ended(code, *capfd.readouterr())

    return run


def write_profile(folder: Path, *, has_gates: bool = True) -> Path:
    layers = tuple(
        LayerProfile(name=name, tensors=(TensorProfile(name=name, shape=(100, 1000)),), forward_s=0.02, backward_s=0.04)
        for name in "abc"
    )
    figures = {"flops_per_s": 1e11, "shard_flops_per_s": 1e10, "add_bytes_per_s": 1e9, "has_gates": has_gates}
    Measured(profile=Profile(layers=layers), **figures).write(folder / "mine.json")
    return folder / "mine.json"


def test_help_has_every_option_and_examples(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ended = simulate("--help")
    assert (ended.code, ended.err) == (0, "")
    for words in ("--model", "--profile", "--hosts", "--bandwidth", "--latency", "--cluster", "--batch", "--systems"):
        assert words in ended.out
    for words in ("--jitter", "--stragglers", "--straggle", "--seed", "--steps", "--find-bandwidth", "--find-hosts"):
        assert words in ended.out
    for words in ("--share", "--weights", "--urgent", "--against", "--out", "--list", "--debug"):
        assert words in ended.out
    assert "undertow simulate --model vgg19-22k --hosts 1,2,4,8,16,32 --bandwidth 10gbit" in ended.out
    assert "undertow simulate --profile mine.json --hosts 8 --find-bandwidth 90%" in ended.out


def test_a_table_has_every_system_on_every_number_of_hosts(simulate: Simulate) -> None:
    ended = simulate(*RESNET)
    assert ended.code == 0, ended.err
    rows = [line.split() for line in ended.out.splitlines() if line.strip()[:1].isdigit()]
    assert [row[:3] for row in rows] == [[hosts, "4", system] for hosts in "124" for system in SYSTEMS]
    for row in rows[:5]:  # hosts, Gbit/s, system, ms, x compute, exposed ms, speed-up, gain, % of bound, MB
        assert row[3:] == ["291", "1.00", "0.00", "1.00", "1.00", "100", "0.00"]
    figures = {(row[0], row[2]): [float(cell) for cell in row[3:]] for row in rows}
    for hosts, mb in (("2", 102), ("4", 153)):
        for system in ("ps", "wfbp", "ddp", "p3"):
            assert figures[hosts, system][6] == mb
        assert figures[hosts, "ps"][0] > figures[hosts, "wfbp"][0] > figures[hosts, "undertow"][0]
        assert figures[hosts, "ddp"][4] == 1.00
    for (hosts, _), (ms, times, exposed_ms, speedup, *_) in figures.items():
        assert times == pytest.approx(ms / 290.9, abs=0.01)
        assert exposed_ms == pytest.approx(ms - 290.9, abs=1)
        assert speedup == pytest.approx(int(hosts) / times, rel=0.01)
    assert "resnet50, batch 32 per host, simulated" in ended.out


# What is simulated


def test_a_list_says_what_each_system_is(simulate: Simulate) -> None:
    ended = simulate("--list")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert [line.split()[0] for line in lines] == list_schedules()
    assert all(len(line.split()) > 2 for line in lines)


def test_results_are_written_as_json_page_and_picture(simulate: Simulate, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    ended = simulate("--profile", write_profile(tmp_path), "--hosts", "2,3", "--steps", "4", "--out", path)
    assert ended.code == 0, ended.err
    read = read_results(path)
    assert [(point.hosts, point.bandwidth_gbit, point.system) for point in read.points] == [
        (hosts, 10.0, system) for hosts in (2, 3) for system in ("ddp", "undertow")
    ]
    for point in read.points:
        assert (point.model, point.origin, point.batch, point.steps) == ("mine", "simulated", 1, 4)
        assert point.compute_s == pytest.approx(0.18)
        assert point.speedup == pytest.approx(point.hosts * 0.18 / point.iteration_s)
        assert point.gain_over_ddp is not None
        assert point.bytes_out_per_host is not None
    fields = json.loads(path.read_text())["points"][0]
    assert set(fields) == set(read.points[0].__struct_fields__)
    assert "mine" in (tmp_path / "run.html").read_text()
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert f"written: {path}, " in ended.err


def test_a_profile_without_gates_is_told_what_it_gets(simulate: Simulate, tmp_path: Path) -> None:
    with_gates, without = (
        simulate("--profile", write_profile(tmp_path, has_gates=has_gates), "--hosts", "2")
        for has_gates in (True, False)
    )
    assert with_gates.code == without.code == 0
    assert "DistributedDataParallel" not in with_gates.out
    assert "`undertow-no-gate`" in without.out


def test_a_cluster_may_come_from_a_file(simulate: Simulate, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    hosts = [{"count": 2, "bandwidth": "10gbit"}, {"bandwidth": "1gbit", "slowdown": 2}]
    path.write_text(json.dumps({"hosts": hosts}))
    ended = simulate("--profile", write_profile(tmp_path), "--cluster", path, "--systems", "undertow")
    assert ended.code == 0, ended.err
    assert [row[:2] for row in ended.rows] == [["1", "undertow"]]
    assert "mine, 3 hosts, batch 1 per host, simulated" in ended.out
    assert "The cluster is read from cluster.json; Gbit/s are those of its slowest link." in ended.out


def test_a_batch_is_a_number_of_samples(simulate: Simulate) -> None:
    ended = simulate("--model", "resnet50", "--hosts", "1", "--batch", "64", "--systems", "undertow")
    assert ended.code == 0, ended.err
    assert "582" in ended.out
    assert "batch 64 per host" in ended.out


def test_latency_and_noise_have_an_effect(simulate: Simulate, tmp_path: Path) -> None:
    common = ("--profile", write_profile(tmp_path), "--hosts", "2", "--systems", "wfbp")

    def find_ms(*options: str) -> float:
        ended = simulate(*common, *options)
        assert ended.code == 0, ended.err
        (row,) = ended.rows
        return float(row[row.index("wfbp") + 1])

    calm_ms = find_ms()
    assert find_ms("--latency", "50ms") == pytest.approx(calm_ms + 100, rel=0.02)
    first, again, other = (find_ms("--jitter", "20%", "--steps", "5", "--seed", seed) for seed in "112")
    assert first == again != other
    assert find_ms("--stragglers", "100%", "--straggle", "3", "--steps", "2") == pytest.approx(3 * calm_ms, rel=0.05)


# Several jobs


def test_jobs_that_share_the_hosts_have_a_table_for_each_system(simulate: Simulate, tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    common = (
        "--profile",
        write_profile(tmp_path),
        "--hosts",
        "2",
        "--bandwidth",
        "2gbit",
        "--share",
        "googlenet,googlenet",
    )
    ended = simulate(*common, "--weights", "1,2,1", "--urgent", "0", "--steps", "2", "--out", path)
    assert ended.code == 0, ended.err
    for system in ("plain", "undertow"):
        assert f"mine and googlenet and googlenet, {system}, 2 hosts, 2 Gbit/s, simulated" in ended.out
    assert [row[0] for row in ended.rows] == ["one", "together", "crossover"]
    assert [cell for row in ended.rows for cell in row[-2:]][:3] == ["1.000", "–", ended.rows[1][-2]]
    assert "mine, urgent: computes 180 ms and waits" in ended.out
    assert "googlenet, weight 2: computes" in ended.out
    assert f"written: {path}" in ended.err
    read = json.loads(path.read_text())
    assert (read["origin"], [case["system"] for case in read["cases"]]) == ("simulated", ["plain", "undertow"])
    for case in read["cases"]:
        assert [row["arrangement"] for row in case["rows"]] == ["one after the other", "together", "crossover"]
        assert [job["model"] for job in case["jobs"]] == ["mine", "googlenet", "googlenet"]
        for row in case["rows"][1:]:
            assert row["gain"] == pytest.approx(sum(1 / slow_down for slow_down in row["slow_downs"]))


# Questions


def test_the_bandwidth_that_is_needed_is_found(simulate: Simulate, tmp_path: Path) -> None:
    ended = simulate("--profile", write_profile(tmp_path), "--hosts", "1,2", "--find-bandwidth", "90%")
    assert ended.code == 0, ended.err
    text = " ".join(ended.out.split())
    assert "mine: bandwidth of every link for 90 % of linear speed-up" in text
    assert "hosts ddp undertow" in text
    assert ended.rows[0] == ["1", *["100", "Mbit/s", "or", "less"] * 2]
    assert [len(row) for row in ended.rows] == [9, 5]
    assert ended.rows[1][0] == "2"
    assert 10 < float(ended.rows[1][3]) <= float(ended.rows[1][1]) < 1000  # ddp needs no less


def test_an_unattainable_bandwidth_is_reported(simulate: Simulate, tmp_path: Path) -> None:
    ended = simulate("--profile", write_profile(tmp_path), "--hosts", "2", "--find-bandwidth", "1", "--systems", "ps")
    assert ended.code == 0, ended.err
    assert "more than 800 Gbit/s" in ended.out


def test_the_hosts_that_are_worth_it_are_found(simulate: Simulate, tmp_path: Path) -> None:
    common = ("--profile", write_profile(tmp_path), "--find-hosts", "50%", "--systems", "ddp")
    ended = simulate(*common, "--bandwidth", "10,200mbit")
    assert ended.code == 0, ended.err
    text = " ".join(ended.out.split())
    assert "mine: hosts that are worth it, and their speed-up" in text
    assert "gains 50 % of a host" in text
    slow, fast = ended.rows
    assert slow == ["10", "Mbit/s", "1", "(1.0", "x)"]
    assert fast[:2] == ["200", "Mbit/s"]
    assert 2 <= int(fast[2]) <= 256


def test_measured_points_are_compared_with_predictions(simulate: Simulate, tmp_path: Path) -> None:
    common = {"bandwidth_gbit": 4.0, "scale": 10.0, "compute_s": 0.2909}
    measured = [
        timed(0.4161, system="ddp", **common),
        timed(0.9, system="undertow", **common),
        timed(0.5, system="horovod", **common),
    ]
    write_results(results(measured), tmp_path / "bench.json")
    ended = simulate("--against", tmp_path / "bench.json")
    assert ended.code == 0, ended.err
    (first, second), text = ended.rows, " ".join(ended.out.split())
    assert first[:5] == ["resnet50", "4", "4", "ddp", "416"]
    assert abs(float(first[6].rstrip("%"))) < 10
    assert second[:5] == ["resnet50", "4", "4", "undertow", "900"]
    assert float(second[6].rstrip("%")) < -50
    assert "2 points: median error" in text
    assert "1 beyond 10 %" in text
    assert "points left out because their model, system or link is unknown: 1" in text


# Progress


@pytest.mark.parametrize(
    "arguments",
    [
        ("--hosts", "1,3", "--bandwidth", "1,2gbit"),
        ("--hosts", "1,3", "--systems", "wfbp", "--jitter", "5%"),
        ("--hosts", "1,2", "--find-bandwidth", "90%"),
        ("--hosts", "2,3", "--share", "googlenet,googlenet", "--steps", "1"),
    ],
)
def test_all_that_was_expected_is_done_in_the_end(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    progress = FakeProgress()
    for name in ("simulate", "simulate_search", "simulate_sharing"):
        module = importlib.import_module(f"undertow.cli.{name}")
        monkeypatch.setattr(module, "open_progress", lambda: contextlib.nullcontext(progress))
    ended = simulate("--profile", write_profile(tmp_path), *arguments)
    assert (ended.code, ended.err) == (0, "")
    assert progress.expected > 0
    assert progress.done == pytest.approx(progress.expected)


# Mistakes


def test_an_error_is_one_line_of_the_command(cli: Cli) -> None:
    result = cli.run("simulate", "--model", "vgg")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("undertow simulate: unknown model 'vgg'; did you mean 'vgg19'?")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give --model with the name of a model, or --profile with a file"),
        (("--model", "vgg19", "--profile", "x.json"), "give --model with the name of a model, or --profile"),
        (("--model", "vgg"), "unknown model 'vgg'; did you mean 'vgg19'?"),
        ((*RESNET, "--systems", "horovod"), "unknown system 'horovod'; known: ps, "),
        ((*RESNET, "--systems", ","), "--systems is empty"),
        ((*RESNET, "--hosts", "many"), "--hosts many is not a whole number: give 1 to 1024 hosts"),
        ((*RESNET, "--hosts", "0"), "--hosts 0 is not possible: give 1 to 1024 hosts"),
        ((*RESNET, "--bandwidth", "fast"), "'fast' is not a bandwidth"),
        ((*RESNET, "--latency", "soon"), "--latency 'soon' is not a time"),
        ((*RESNET, "--batch", "0"), "--batch 0 is not possible"),
        (("--profile", "x.json", "--batch", "3"), "--batch is for models of the zoo"),
        ((*RESNET, "--steps", "0"), "--steps 0 is not possible: give 1 to"),
        ((*RESNET, "--jitter", "much"), "--jitter 'much' is not a share: write it as 90% or 0.9"),
        ((*RESNET, "--jitter", "200%"), "--jitter 200% is not possible"),
        ((*RESNET, "--stragglers", "101%"), "--stragglers 101% is not possible"),
        ((*RESNET, "--straggle", "0.5"), "--straggle 0.5 is not possible: give 1 to 1000"),
        ((*RESNET, "--find-bandwidth", "most"), "--find-bandwidth 'most' is not a share"),
        ((*RESNET, "--find-bandwidth", "90"), "--find-bandwidth 90 is not possible: give more than 0 and at most 100%"),
        ((*RESNET, "--find-hosts", "0"), "--find-hosts 0 is not possible: give more than 0 and at most 100%"),
        ((*RESNET, "--cluster", "nowhere.json"), "the cluster nowhere.json cannot be read: No such file"),
        ((*RESNET, "--cluster", __file__), "test_simulate.py describes no cluster"),
        (("--against", "nowhere.json"), "results cannot be read from nowhere.json: No such file"),
        (("--against", __file__), "test_simulate.py is not a results file of undertow"),
        ((*RESNET, "--out", "run.txt"), "--out run.txt: the name must end with .json"),
        ((*RESNET, "--out", "/nowhere/run.json"), "--out /nowhere/run.json: the folder /nowhere does not exist"),
        ((*RESNET, "--share", ","), "--share is empty: name the models of the jobs"),
        ((*RESNET, "--share", "vgg"), "unknown model 'vgg'; did you mean 'vgg19'?"),
        ((*RESNET, "--share", "vgg19"), "ddp takes no turns: name a system that does, such as undertow"),
        ((*PLAIN, "--share", "vgg19", "--weights", "1"), "--weights has 1 numbers for 2 jobs: give one for each"),
        ((*PLAIN, "--share", "vgg19", "--weights", "1,much"), "--weights much is not a number"),
        ((*PLAIN, "--share", "vgg19", "--weights", "1,0"), "--weights 0 is not possible"),
        ((*PLAIN, "--share", "vgg19", "--urgent", "2"), "--urgent 2: the jobs are 0 (resnet50), 1 (vgg19)"),
        ((*PLAIN, "--urgent", "0"), "--weights and --urgent are for jobs that share: name the others with --share"),
        ((*PLAIN, "--share", "vgg19", "--find-hosts", "50%"), "--find-hosts are for one job: leave --share"),
        ((*RESNET, "--fast"), "--fast"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(simulate: Simulate, arguments: tuple[str, ...], words: str) -> None:
    ended = simulate(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("path", ["nowhere.json", __file__])
def test_an_invalid_profile_is_one_line_and_code_1(simulate: Simulate, path: str) -> None:
    ended = simulate("--profile", path)
    assert (ended.code, ended.out) == (1, "")
    assert path in ended.err
    assert ended.err.count("\n") == 1


def test_a_file_without_predictable_points_is_refused(simulate: Simulate, tmp_path: Path) -> None:
    write_results(results([timed(1.0, bandwidth_gbit=None)]), tmp_path / "bench.json")
    ended = simulate("--against", tmp_path / "bench.json")
    assert ended.code == 2
    assert "bench.json has no point that can be predicted: a point needs a model of the zoo" in ended.err
    assert ended.err.count("\n") == 1
