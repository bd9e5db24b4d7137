"""Several series in a row, what is kept when they are aborted, and presets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest

from tests.support.bench_fakes import ENVIRON, Script, make_series, start_script
from undertow.errors import ConfigError, LabError
from undertow.observe.report.points import Results
from undertow.tools.lab import link_check
from undertow.tools.lab.bench.bench import BenchAborted, find_preset, run_bench
from undertow.tools.lab.bench.series import Series
from undertow.tools.lab.iproute import MAX_HOSTS


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Script]:
    return partial(start_script, monkeypatch)


def run(script: Script, *plan: Series) -> Results:
    def open_net(hosts: int) -> AbstractContextManager[Any]:
        assert hosts == len(script.net.hosts)
        return nullcontext(script.net)

    return run_bench(plan, environ=ENVIRON, open_network=open_net, progress=script.progress, command="undertow bench")


def test_results_have_the_points_of_all_series_in_their_order(start: Any) -> None:
    script = start()
    results = run(script, make_series(), make_series(model="vgg19", bandwidths_gbit=(1.0, 2.0)))
    assert [(point.model, point.bandwidth_gbit) for point in results.points[::2]] == [
        ("resnet50", 10.0),
        ("vgg19", 1.0),
        ("vgg19", 2.0),
    ]
    assert results.command == "undertow bench"
    assert results.notes == []
    one = 1 + 2 * (1 + 4)  # the links are checked, then both systems warm up and take their turns
    assert script.progress.expected == script.progress.done == 2 * 2 + 3 * one


def test_unshaped_results_say_so(start: Any) -> None:
    [note] = run(start(), make_series(bandwidths_gbit=(None,))).notes
    assert note.startswith("Unshaped: ")


@pytest.mark.parametrize(
    ("error", "reason"),
    [(LabError("a worker died\nits last words"), "a worker died"), (KeyboardInterrupt(), "interrupted")],
)
def test_what_was_measured_before_a_failure_is_kept(start: Any, error: BaseException, reason: str) -> None:
    second_bandwidth = 2 + 8 + 3
    script = start(failure=(second_bandwidth, error))
    with pytest.raises(BenchAborted) as broken:
        run(script, make_series(bandwidths_gbit=(10.0, 2.0)), make_series(model="vgg19"))
    assert [point.bandwidth_gbit for point in broken.value.results.points] == [10.0, 10.0]
    assert broken.value.results.notes == [f"Aborted: {reason}"]
    assert str(broken.value) == (str(error) or reason)
    assert script.alive == []


def test_a_failure_in_a_later_series_keeps_the_earlier_ones(start: Any) -> None:
    script = start(failure=(2 + 8, LabError("a worker died")))
    with pytest.raises(BenchAborted) as broken:
        run(script, make_series(), make_series(model="vgg19"))
    assert {point.model for point in broken.value.results.points} == {"resnet50"}


def test_a_failure_before_the_first_point_leaves_none(start: Any) -> None:
    script = start(failure=(0, LabError("a worker died")))
    with pytest.raises(BenchAborted) as broken:
        run(script, make_series(bandwidths_gbit=(None,)))
    assert broken.value.results.points == []
    assert broken.value.results.notes == ["Aborted: a worker died"]


def test_a_bandwidth_whose_links_are_off_is_left_out_and_the_rest_goes_on(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = start()

    def check(network: object, rate: float) -> None:
        if rate == 2e8:
            raise LabError("a link carries 70 %")

    monkeypatch.setattr(link_check, "check_links", check)
    with pytest.raises(BenchAborted, match="not everything could be measured") as broken:
        run(script, make_series(bandwidths_gbit=(10.0, 2.0, 4.0)))
    results = broken.value.results
    assert [point.bandwidth_gbit for point in results.points] == [10.0, 10.0, 4.0, 4.0]
    assert results.notes == ["resnet50, 4 hosts, 2 Gbit/s is left out: a link carries 70 %"]
    assert script.progress.expected == script.progress.done  # progress does not wait for what is left out


@pytest.mark.parametrize("name", ["quick", "papers"])
def test_presets_are_well_formed(name: str) -> None:
    plan = find_preset(name)
    assert plan
    for series in plan:
        assert {"ddp", "undertow"} <= set(series.systems)
        assert 2 <= series.hosts <= MAX_HOSTS
        assert series.bandwidths_gbit
        for bandwidth_gbit in series.bandwidths_gbit:
            assert bandwidth_gbit is not None
            # Slow enough for one machine to carry the traffic of all hosts, and fast enough to be checked.
            assert 0.05 <= bandwidth_gbit / series.scale <= 4.0
    points = Counter((s.model, s.hosts, b, name) for s in plan for b in s.bandwidths_gbit for name in s.systems)
    assert set(points.values()) == {1}


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as error:
        find_preset("slow")
    assert str(error.value) == "unknown preset 'slow'; known: quick, papers"
