"""Plans of a share bench: impossible ones are refused, and how the command line is read."""

from __future__ import annotations

from typing import Any

import pytest
import typer.testing

from undertow.cli import share_bench
from undertow.errors import ConfigError
from undertow.observe.report.shared_jobs import Arrangement
from undertow.tools.lab.bench.messages import Assignment
from undertow.tools.lab.sharing.plan import Job, Mode, SharePlan
from undertow.tools.lab.systems import find_system


def make_plan(*models: str, **changes: Any) -> SharePlan:
    jobs = tuple(Job(model=model) for model in models or ("resnet50", "vgg19"))
    return SharePlan(**{"jobs": jobs, "bandwidths_gbit": (2.0,), **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"jobs": (Job(model="resnet50"),)}, "--jobs needs at least two models"),
        ({"hosts": 1}, "at least two hosts are needed"),
        ({"hosts": 9999}, "9999 hosts are not possible"),
        ({"rounds": 1}, "--rounds 1 is not enough"),
        ({"lap_s": 0.0}, "--lap 0 is not possible"),
        ({"scale": -1.0}, "--scale -1 is not possible"),
        ({"bandwidths_gbit": ()}, "give either --bandwidth or --ratio"),
        ({"ratios": (0.5,)}, "give either --bandwidth or --ratio"),
        ({"bandwidths_gbit": (), "ratios": (0.0,)}, "--ratio 0 is not possible"),
        ({"bandwidths_gbit": (0.002,)}, "leave too little of 2 Mbit/s to measure"),
        ({"jobs": (Job(model="gpt"), Job(model="resnet50")), "scale": 1.0}, "cannot share a device"),
        ({"jobs": (Job(model="gpt"), Job(model="gpt"))}, "leave --scale and --slowdown out"),
        ({"jobs": (Job(model="gpt"), Job(model="gpt")), "scale": 1.0, "hosts": 250}, "a core for every host"),
        (
            {"jobs": (Job(model="gpt"),) * 2, "scale": 1.0, "hosts": 2, "bandwidths_gbit": (), "ratios": (1.0,)},
            "--ratio is for replayed models",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(
    changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    with pytest.raises(ConfigError, match=words):
        make_plan(**changes)


def test_jobs_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="unknown model 'nonsense'"):
        Job(model="nonsense")
    with pytest.raises(ConfigError, match="--weights 0 is not possible"):
        Job(model="gpt", weight=0.0)


def test_real_compute_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
    real = make_plan("gpt", "gpt", scale=1.0, hosts=2, rounds=3)
    assert Arrangement.COMPUTE in real.arrangements
    assert real.lap_count == 3 * (3 * 2 + 2)
    replayed = make_plan(rounds=3)
    assert Arrangement.COMPUTE not in replayed.arrangements
    assert replayed.lap_count == 3 * (2 * 2 + 2)


def test_jobs_of_the_same_model_are_told_apart() -> None:
    assert make_plan("resnet50", "vgg19").labels == ("resnet50", "vgg19")
    assert make_plan("resnet50", "vgg19", "resnet50").labels == ("resnet50 1", "vgg19", "resnet50 3")


def test_a_worker_is_told_where_its_device_is() -> None:
    plan = make_plan(scale=20.0, slowdown=2.0)
    assert plan.assign(plan.jobs[1].model, "ddp", devices="/devices") == Assignment(
        model="vgg19", system="ddp", scale=20.0, slowdown=2.0, batch=None, devices="/devices"
    )
    assert plan.link_rate(2.0) == pytest.approx(2e9 / 40)


def test_plain_jobs_hide_nothing_by_themselves() -> None:
    variables = find_system(Mode.PLAIN.value).variables(scale=10.0)
    assert (variables["UNDERTOW_WAIT_FREE"], variables["UNDERTOW_PLAN"]) == ("off", "dense")
    assert variables["UNDERTOW_SLICE"] == ""
    assert "gate" in find_system(Mode.PLAIN.value).without  # type: ignore[attr-defined]
    assert find_system(Mode.EVERYTHING.value).without == ()  # type: ignore[attr-defined]


# The command line


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SharePlan]:
    plans: list[SharePlan] = []

    def keep(name: str, measure: Any, show: Any, *, is_unshaped: bool) -> int:
        plans.append(*measure.args)
        return 0

    monkeypatch.setattr(share_bench, "measure_in_lab", keep)
    return plans


def call(*arguments: str) -> typer.testing.Result:
    app = typer.Typer()
    app.command()(share_bench.bench)
    return typer.testing.CliRunner().invoke(app, arguments)


def test_every_option_has_its_place_in_the_plan(asked: list[SharePlan]) -> None:
    options = "--jobs resnet50,vgg19 --hosts 3 --bandwidth 1,2gbit --scale 5 --slowdown 2 --mode everything"
    more = "--weights 1,2.5 --urgent 1 --rounds 7 --lap 2"
    result = call(*options.split(), *more.split())
    assert result.exit_code == 0, result.output
    assert asked == [
        SharePlan(
            jobs=(Job(model="resnet50"), Job(model="vgg19", weight=2.5, is_urgent=True)),
            mode=Mode.EVERYTHING,
            hosts=3,
            bandwidths_gbit=(1.0, 2.0),
            scale=5.0,
            slowdown=2.0,
            rounds=7,
            lap_s=2.0,
        )
    ]


def test_without_options_it_is_a_pair_that_can_gain(asked: list[SharePlan]) -> None:
    call()
    call("--ratio", "0.2,1", "--jobs", "vgg19,vgg19")
    call("--unshaped")
    assert [plan.ratios for plan in asked] == [(0.5,), (0.2, 1.0), ()]
    assert [plan.bandwidths_gbit for plan in asked] == [(), (), (None,)]
    assert asked[0] == SharePlan(jobs=(Job(model="resnet50"),) * 2, ratios=(0.5,))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--mode fast", "--mode 'fast' is not known: use plain or everything"),
        ("--weights 1,2,3", "--weights has 3 numbers for 2 jobs: give one for each of 0 (resnet50), 1 (resnet50)"),
        ("--weights a,b", "--weights a is not a number"),
        ("--urgent 2", "--urgent 2: the jobs are 0 (resnet50), 1 (resnet50)"),
        ("--bandwidth 1gbit --ratio 1", "give either --bandwidth or --ratio"),
        ("--unshaped --ratio 1", "leave --bandwidth and --ratio out"),
        ("--out results.txt", "the name must end with .json"),
        ("--jobs resnet50,nonsense", "unknown model 'nonsense'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    asked: list[SharePlan], options: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(*options.split()).exit_code == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("undertow share bench: ")
    assert words in line
    assert asked == []
