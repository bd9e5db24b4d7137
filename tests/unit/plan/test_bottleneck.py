"""The network's share of an iteration, computed by hand: the example of Poseidon, and the grades of Ethernet."""

from __future__ import annotations

import json

import pytest

from undertow.errors import ConfigError
from undertow.plan.bottleneck import GRADES_GBIT, NetworkVerdict, Workload, find_bottleneck, judge_grade

ALEXNET = Workload(params=61.5e6, iteration_s=0.25, hosts=8)


def test_the_papers_example() -> None:
    """Poseidon, ATC 2017: 240 M floats/s per device, 240 M x 7/8 x 4 = 840 M floats/s = 26 Gbit/s per machine."""
    found = find_bottleneck(
        Workload(params=60e6, iteration_s=0.25, hosts=8)
    )  # 61.5 M / 0.25 s is 246 M: the paper rounds
    assert found.made.floats_per_s == 240e6
    assert found.both.floats_per_s == 840e6
    assert int(found.both.bits_per_s / 1e9) == 26
    assert find_bottleneck(ALEXNET).both.bits_per_s == pytest.approx(26e9, rel=0.07)


def test_each_direction_has_half_of_it() -> None:
    found = find_bottleneck(ALEXNET)
    assert found.outgoing == found.incoming
    assert found.outgoing.floats_per_s == 2 * 7 / 8 * 61.5e6 / 0.25
    assert found.outgoing.bits_per_s == pytest.approx(13.776e9)
    assert found.both.bits_per_s == 2 * found.outgoing.bits_per_s


@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_the_bytes_leaving_a_host_are_the_sum_over_all_pairs(hosts: int) -> None:
    """Counted one by one: a worker's push to each other shard, a shard's answer to each other worker."""
    params = 1000.0
    out = sum(params / hosts + params / hosts for _ in range(hosts - 1))
    assert find_bottleneck(
        Workload(params=params, iteration_s=1.0, hosts=hosts)
    ).outgoing.floats_per_s == pytest.approx(out)


@pytest.mark.parametrize(("gbit", "floats_per_s"), [(1, 31.25e6), (10, 312.5e6), (40, 1250e6)])
def test_floats_per_second_of_a_grade(gbit: float, floats_per_s: float) -> None:
    assert judge_grade(ALEXNET, gbit).floats_per_s == floats_per_s


def test_a_grade_has_time_share_and_both_bounds_of_the_iteration() -> None:
    grade = judge_grade(ALEXNET, 10)
    assert grade.transfer_s == pytest.approx(2 * 7 / 8 * 61.5e6 * 4 / 1.25e9)
    assert grade.share == pytest.approx(grade.transfer_s / 0.25)
    assert grade.serial == pytest.approx((0.25 + grade.transfer_s) / 0.25)
    assert grade.bound == pytest.approx(1.3776)
    assert judge_grade(ALEXNET, 25).bound == 1.0


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        (0.1, NetworkVerdict.HIDDEN),
        (0.66, NetworkVerdict.HIDDEN),
        (0.67, NetworkVerdict.HIDDEN_BY_FORWARD),
        (1.0, NetworkVerdict.HIDDEN_BY_FORWARD),
        (1.01, NetworkVerdict.LIMIT),
        (20.0, NetworkVerdict.LIMIT),
    ],
)
def test_the_verdict_follows_the_share(share: float, verdict: NetworkVerdict) -> None:
    # Two hosts send as many bytes as there are: 125 MB are a second of 1 Gbit/s.
    assert judge_grade(Workload(params=share * 31.25e6, iteration_s=1.0, hosts=2), 1).verdict is verdict


def test_half_the_bytes_are_half_the_time() -> None:
    half = Workload(params=61.5e6, iteration_s=0.25, hosts=8, bytes_per_param=2)
    assert judge_grade(half, 1).transfer_s == pytest.approx(judge_grade(ALEXNET, 1).transfer_s / 2)
    assert find_bottleneck(half).both.bits_per_s == pytest.approx(find_bottleneck(ALEXNET).both.bits_per_s / 2)


def test_json_has_every_grade_and_the_verdict_in_words() -> None:
    found = json.loads(find_bottleneck(ALEXNET).to_json())
    assert [grade["gbit_per_s"] for grade in found["grades"]] == list(GRADES_GBIT)
    assert (found["grades"][0]["verdict"], found["grades"][-1]["verdict"]) == ("the limit", "hidden")
    assert found["job"]["hosts"] == 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": 0}, "--hosts 0: a network needs at least two"),
        ({"hosts": 1}, "--hosts 1: a network needs at least two"),
        ({"bytes_per_param": 0}, "--bytes-per-param 0 is not possible"),
        ({"bytes_per_param": 17}, "--bytes-per-param 17 is not possible"),
    ],
)
def test_impossible_jobs_are_refused(change: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Workload(**{"params": 1e6, "iteration_s": 1.0, "hosts": 2, **change})  # type: ignore[arg-type]
