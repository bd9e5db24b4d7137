"""A series: the order of its laps, when it adds rounds, and how its points are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.support.bench_fakes import COMPUTE_S, ENVIRON, HOSTS, WARM_UP_STEPS, Script, make_series, start_script
from undertow.errors import ConfigError, LabError
from undertow.observe.report.points import NOISE
from undertow.tools.lab import link_check
from undertow.tools.lab.bench.messages import Assignment, Lap, Ready
from undertow.tools.lab.bench.series import MAX_ROUNDS_FACTOR, measure
from undertow.tools.lab.bench.worker_group import WorkerGroup
from undertow.tools.lab.iproute import MAX_HOSTS
from undertow.tools.lab.link_check import CHECKS
from undertow.tools.lab.network import open_loopback
from undertow.tools.lab.real import REAL_NAMES
from undertow.tools.lab.systems import find_system


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Script]:
    return partial(start_script, monkeypatch)


def test_every_system_takes_as_many_turns_as_there_are_rounds(start: Any) -> None:
    script = start()
    [points] = script.measure(make_series())
    assert Counter(script.laps) == {"ddp": 4, "undertow": 4}
    assert [point.system for point in points] == ["ddp", "undertow"]
    assert script.alive == []
    assert script.progress.done == make_series().laps


def test_who_goes_first_changes_so_that_both_halves_see_every_order(start: Any) -> None:
    script = start()
    script.measure(make_series(rounds=8))
    rounds = [tuple(script.laps[at : at + 2]) for at in range(0, 16, 2)]
    assert len(set(rounds)) == 2
    for half in (rounds[0::2], rounds[1::2]):
        assert Counter(half) == {("ddp", "undertow"): 2, ("undertow", "ddp"): 2}


def test_everybody_goes_first_once_among_three(start: Any) -> None:
    names = ("ddp", "undertow", "local")
    script = start(speeds={name: lambda _: 1.0 for name in names})
    script.measure(make_series(systems=names, rounds=6))
    assert Counter(script.laps[0::3]) == dict.fromkeys(names, 2)
    assert all(set(script.laps[at : at + 3]) == set(names) for at in range(0, 18, 3))


def test_a_calm_machine_gets_no_extra_rounds(start: Any) -> None:
    script = start(speeds={"ddp": lambda _: 1.0, "undertow": lambda lap: 1.0 + 0.9 * NOISE * (lap % 2)})
    [points] = script.measure(make_series())
    assert len(script.laps) == 8
    assert not any(point.is_noisy for point in points)
    assert script.progress.expected == 0


def test_a_noisy_system_gets_extra_rounds_for_all_and_in_the_end_is_called_noisy(start: Any) -> None:
    script = start(speeds={"ddp": lambda _: 1.0, "undertow": lambda lap: 1.0 + 1.5 * NOISE * (lap % 2)})
    [(ddp, undertow)] = script.measure(make_series())
    assert Counter(script.laps) == {"ddp": 4 * MAX_ROUNDS_FACTOR, "undertow": 4 * MAX_ROUNDS_FACTOR}
    assert (ddp.is_noisy, undertow.is_noisy) == (False, True)
    assert script.progress.expected == 2 * 4 * (MAX_ROUNDS_FACTOR - 1)
    assert script.progress.done == make_series().laps + script.progress.expected


def test_extra_rounds_end_as_soon_as_the_halves_agree(start: Any) -> None:
    # The second round was disturbed; after the sixth, the median of the even rounds ignores it.
    script = start(speeds={"ddp": lambda _: 1.0, "undertow": lambda lap: 1.4 if lap == 2 else 1.0})
    [(_, undertow)] = script.measure(make_series())
    assert len(script.laps) == 2 * 6
    assert script.progress.expected == 2 * 2
    assert not undertow.is_noisy


def test_the_warm_up_is_not_measured_and_decides_how_long_a_lap_is(start: Any) -> None:
    script = start(speeds={"ddp": lambda lap: 0.5 if lap else 0.25, "undertow": lambda lap: 1.0 if lap else 50.0})
    [(ddp, undertow)] = script.measure(make_series(lap_s=3.0))
    assert script.turns[:2] == [("ddp", WARM_UP_STEPS), ("undertow", WARM_UP_STEPS)]
    lengths = dict(script.turns[2:])
    assert lengths == {"ddp": 1 + 12, "undertow": 1 + 3}  # a slow system makes at least three
    assert (ddp.iteration_s, undertow.iteration_s) == pytest.approx((0.5, 1.0))
    assert (ddp.steps, undertow.steps) == (12 * 4, 3 * 4)


def test_a_lap_of_a_fast_system_ends_some_time(start: Any) -> None:
    script = start(speeds={"ddp": lambda _: 1e-6, "undertow": lambda _: 1e-6})
    script.measure(make_series(lap_s=1000.0))
    assert max(steps for _, steps in script.turns) <= 21


def test_links_are_held_to_the_scaled_bandwidth_and_checked(start: Any) -> None:
    script = start()
    points = script.measure(make_series(bandwidths_gbit=(10.0, 2.0)))
    assert script.net.shaped_bits_per_s == [1e9, 1e9, 2e8]  # shaped before systems start, which may measure them
    assert script.net.checked_bits_per_s == [1e9, 2e8]
    assert [[point.bandwidth_gbit for point in group] for group in points] == [[10.0] * 2, [2.0] * 2]


def test_groups_live_through_all_bandwidths(start: Any) -> None:
    script = start()
    script.measure(make_series(bandwidths_gbit=(10.0, 2.0)))
    assert len(script.assignments) == 2
    assert script.assignments[0] == Assignment(model="resnet50", system="ddp", scale=10.0, batch=None)


def test_without_shaping_nothing_is_limited_or_checked(start: Any) -> None:
    script = start()
    [points] = script.measure(make_series(bandwidths_gbit=(None,)))
    assert script.net.checked_bits_per_s == []
    assert set(script.net.shaped_bits_per_s) == {None}
    for point in points:
        assert not point.is_shaped
        assert point.bound_s == COMPUTE_S  # no bandwidth bounds it


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
def test_the_bound_is_the_transfer_of_what_was_sent_whatever_the_scale(start: Any, scale: float) -> None:
    # Sizes and bandwidth are divided by the same number, so the time stays.
    whole_bytes = 1_000_000_000
    script = start(step_bytes=round(whole_bytes / scale / 2.5))  # hosts send 1, 2, 3 and 4 times that
    slow, fast = script.measure(make_series(scale=scale, bandwidths_gbit=(5.0, 40.0)))
    assert [point.bound_s for point in slow] == pytest.approx([whole_bytes * 8 / 5e9] * 2)
    assert [point.bound_s for point in fast] == pytest.approx([COMPUTE_S] * 2)


def test_slowed_down_hosts_are_given_the_times_that_they_would_have(start: Any) -> None:
    ready = Ready(batch=32, gradient_bytes=100_000, compute_s=8 * COMPUTE_S)
    script = start(
        ready=ready, step_bytes=10**9, speeds={"ddp": lambda _: 16 * COMPUTE_S, "undertow": lambda _: 12 * COMPUTE_S}
    )
    [(ddp, undertow)] = script.measure(make_series(slowdown=8.0))
    assert script.net.checked_bits_per_s == [10e9 / 10 / 8]
    assert script.assignments[0].slowdown == 8
    assert (ddp.iteration_s, undertow.iteration_s) == pytest.approx((2 * COMPUTE_S, 1.5 * COMPUTE_S))
    assert (ddp.compute_s, ddp.slowdown, ddp.speedup) == pytest.approx((COMPUTE_S, 8, 2.0))
    assert ddp.iteration_low_s == ddp.iteration_high_s == pytest.approx(2 * COMPUTE_S)
    assert ddp.bound_s == pytest.approx(2.5e9 * 8 * 10 / 10e9)


@pytest.mark.parametrize("slowdown", [0.5, 0.0, float("inf"), float("nan")])
def test_nobody_is_slowed_down_by_less_than_one(slowdown: float) -> None:
    with pytest.raises(ConfigError, match="slowdown"):
        make_series(slowdown=slowdown)


def test_real_compute_cannot_be_slowed_down() -> None:
    with pytest.raises(ConfigError, match="computes for real"):
        make_series(model="gpt", scale=1.0, slowdown=2.0)


def test_speed_up_and_gain_follow_from_the_times(start: Any) -> None:
    script = start(speeds={"ddp": lambda _: 1.0, "undertow": lambda _: 0.8})
    [(ddp, undertow)] = script.measure(make_series())
    assert (ddp.speedup, undertow.speedup) == pytest.approx((4 * 0.5 / 1.0, 4 * 0.5 / 0.8))
    assert (ddp.gain_over_ddp, undertow.gain_over_ddp) == pytest.approx((1.0, 1.25))
    assert (ddp.compute_s, ddp.batch, ddp.origin) == (0.5, 32, "measured")


def test_without_ddp_there_is_no_gain_over_it(start: Any) -> None:
    script = start(speeds={"undertow": lambda _: 1.0, "local": lambda _: 1.0})
    [points] = script.measure(make_series(systems=("undertow", "local")))
    assert [point.gain_over_ddp for point in points] == [None, None]


def test_a_real_tasks_compute_is_what_it_took_alone(start: Any) -> None:
    ready = Ready(batch=8, gradient_bytes=10**9, compute_s=None)
    speeds = {"local": lambda _: 0.4, "ddp": lambda _: 2.0, "undertow": lambda _: 1.6}
    script = start(ready=ready, speeds=speeds)
    [(local, ddp, undertow)] = script.measure(make_series(model="gpt", scale=1.0))
    assert (local.compute_s, ddp.compute_s) == pytest.approx((0.4, 0.4))
    assert ddp.speedup == pytest.approx(4 * 0.4 / 2.0)
    assert undertow.bound_s == pytest.approx(0.4)


def test_bytes_and_cpu_time_are_per_step(start: Any) -> None:
    [points] = start().measure(make_series())
    for point in points:
        # Every step adds 1000 bytes to the first host's counter, 2000 to the second's, and so on.
        assert point.bytes_out_per_host == pytest.approx(1000 * (1 + 2 + 3 + 4) / 4)
        assert point.cpu_s == pytest.approx(0.25 * HOSTS)


def test_a_slow_network_is_waited_for_longer(start: Any) -> None:
    ready = Ready(batch=1, gradient_bytes=10**9, compute_s=0.1)
    script = start(ready=ready)
    script.measure(make_series(scale=1.0, bandwidths_gbit=(0.1, 10.0)))
    steps_s = 2 * 8 * 0.75 / 0.1 + 0.1
    assert script.timeouts_s[0] > 5 * WARM_UP_STEPS * steps_s
    assert script.timeouts_s[-1] < script.timeouts_s[0]
    assert min(script.timeouts_s) >= 60


def test_a_failing_group_ends_the_others(start: Any) -> None:
    script = start(failure=(5, LabError("a worker died")))
    with pytest.raises(LabError, match="a worker died"):
        script.measure(make_series())
    assert script.alive == []


# Replicas


def lap(digest: int) -> Lap:
    return Lap(ends_s=[1.0, 2.0], cpu_s=0.0, sent_bytes=None, digest=digest)


@pytest.mark.parametrize(("system", "is_wrong"), [("ddp", True), ("undertow-no-slicing", True), ("local", False)])
def test_replicas_that_differ_make_figures_meaningless(
    monkeypatch: pytest.MonkeyPatch, system: str, is_wrong: bool
) -> None:
    with open_loopback(3) as network:
        assignment = Assignment(model="resnet50", system=system, scale=1.0, batch=None)
        group = WorkerGroup(network, find_system(system), assignment, {})
        monkeypatch.setattr(group, "_receive", lambda kind, timeout_s: [lap(5), lap(5), lap(5)])
        assert len(group.run(2, timeout_s=1.0)) == 3
        monkeypatch.setattr(group, "_receive", lambda kind, timeout_s: [lap(5), lap(5), lap(6)])
        if is_wrong:
            with pytest.raises(LabError, match=f"{system} with resnet50: the replicas differ after 2 steps"):
                group.run(2, timeout_s=1.0)
        else:
            assert len(group.run(2, timeout_s=1.0)) == 3


@pytest.mark.parametrize("failures", [0, 1, CHECKS - 1, CHECKS])
def test_a_link_is_refused_only_if_it_is_slow_every_time(
    start: Any, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    script, checks = start(), []

    def check(network: Any, rate: float) -> None:
        checks.append(rate)
        if len(checks) <= failures:
            raise LabError("it is slow")

    monkeypatch.setattr(link_check, "check_links", check)
    legs = list(measure(make_series(), script.net, environ=ENVIRON, progress=script.progress))
    assert [bool(leg.points) for leg in legs] == [failures < CHECKS]
    assert len(checks) == min(failures + 1, CHECKS)
    assert legs[0].refusal.endswith("is left out: it is slow" if failures == CHECKS else "")


# Plans


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "resnet5000"}, "unknown model 'resnet5000'"),
        ({"systems": ("ddp", "magic")}, "unknown system 'magic'; known: ddp"),
        ({"hosts": 1}, "--hosts 1: at least two"),
        ({"hosts": 0}, "--hosts 0: at least two"),
        ({"hosts": MAX_HOSTS + 1}, "251 hosts are not possible"),
        ({"systems": ()}, "--systems is empty"),
        ({"scale": 0.0}, "--scale 0 is not possible"),
        ({"scale": -10.0}, "--scale -10 is not possible"),
        ({"scale": float("inf")}, "--scale inf is not possible"),
        ({"scale": float("nan")}, "--scale nan is not possible"),
        ({"rounds": 1}, "--rounds 1 is not enough"),
        ({"rounds": -4}, "--rounds -4 is not enough"),
        ({"batch": 0}, "--batch 0 is not possible"),
        ({"batch": -1}, "--batch -1 is not possible"),
        ({"lap_s": 0.0}, "--lap 0 is not possible"),
        ({"lap_s": -1.0}, "--lap -1 is not possible"),
        ({"lap_s": float("nan")}, "--lap nan is not possible"),
        ({"lap_s": float("inf")}, "--lap inf is not possible"),
        ({"model": "gpt", "scale": 10.0}, "gpt computes for real and cannot be scaled or slowed down"),
    ],
)
def test_the_impossible_is_refused_before_anything_is_started(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_series(**changes)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_compute_alone_is_measured_beside_a_real_task() -> None:
    assert make_series(model="gpt", scale=1.0).all_systems == ("local", "ddp", "undertow")
    assert make_series(model="gpt", scale=1.0, systems=("ddp", "local")).all_systems == ("ddp", "local")
    assert make_series().all_systems == ("ddp", "undertow")  # nominal compute need not be measured


def test_laps_are_those_of_all_systems_rounds_and_bandwidths_with_starts_checks_and_warm_ups() -> None:
    assert make_series(bandwidths_gbit=(1.0, 2.0, 4.0)).laps == 2 + 3 * (1 + 2 + 2 * 4)
    assert make_series(model="gpt", scale=1.0).laps == 3 + (1 + 3 + 3 * 4)


def test_a_series_describes_itself() -> None:
    assert make_series().describe(10.0) == "resnet50, 4 hosts, 10 Gbit/s"
    assert make_series().describe(0.4) == "resnet50, 4 hosts, 400 Mbit/s"
    assert make_series().describe(None) == "resnet50, 4 hosts, unshaped"


def test_every_real_task_can_be_planned() -> None:
    for name in REAL_NAMES:
        assert replace(make_series(scale=1.0), model=name).all_systems[0] == "local"
