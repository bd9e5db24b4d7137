"""Searches: the least bandwidth that is enough, the most hosts that are worth it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.bench_fakes import FakeProgress
from undertow.errors import ConfigError
from undertow.plan.profile import LayerProfile, Profile, TensorProfile
from undertow.tools.sim.schedules import find_schedule
from undertow.tools.sim.subject import Subject, find_subject
from undertow.tools.sim.sweep import Setting, run, weigh
from undertow.tools.sim.topology import make_topology
from undertow.tools.sim.whatif import FASTEST_BITS_PER_S, SLOWEST_BITS_PER_S, find_bandwidth, find_hosts, weigh_search

SETTING = Setting(steps=1)


def make_subject(*sizes_bytes: int, compute_s: float = 0.3) -> Subject:
    share_s = compute_s / 3 / len(sizes_bytes)
    layers = tuple(
        LayerProfile(
            name=f"{index}",
            tensors=(TensorProfile(name=f"{index}", shape=(size_bytes // 4,)),),
            forward_s=share_s,
            backward_s=2 * share_s,
        )
        for index, size_bytes in enumerate(sizes_bytes)
    )
    return replace(find_subject("resnet50"), name="mine", profile=Profile(layers=layers))


MINE = make_subject(2_000_000, 4_000_000, 8_000_000)


def find_efficiency(subject: Subject, hosts: int, bits_per_s: float, system: str) -> float:
    outcome = run(subject, make_topology(hosts, bits_per_s), find_schedule(system), SETTING)
    return subject.profile.compute_s / outcome.iteration_s


# Bandwidth


@pytest.mark.parametrize(("system", "efficiency"), [("ddp", 0.9), ("undertow", 0.9), ("undertow", 0.5)])
def test_the_bandwidth_is_enough_and_a_tenth_less_is_not(system: str, efficiency: float) -> None:
    found = find_bandwidth(MINE, 3, find_schedule(system), efficiency=efficiency, setting=SETTING)
    assert found is not None
    assert find_efficiency(MINE, 3, found, system) >= efficiency
    assert find_efficiency(MINE, 3, 0.9 * found, system) < efficiency


def test_more_of_linear_speedup_needs_more_bandwidth() -> None:
    found = [
        find_bandwidth(MINE, 2, find_schedule("wfbp"), efficiency=efficiency, setting=SETTING)
        for efficiency in (0.5, 0.8, 0.95)
    ]
    assert found == sorted(set(found))


def test_one_host_needs_none() -> None:
    found = find_bandwidth(MINE, 1, find_schedule("undertow"), efficiency=1.0, setting=SETTING)
    assert found == SLOWEST_BITS_PER_S


def test_where_the_latency_alone_is_too_long_no_bandwidth_is_enough() -> None:
    quick = make_subject(4000, compute_s=0.0003)
    assert find_bandwidth(quick, 2, find_schedule("undertow"), efficiency=0.9, setting=SETTING) is None
    assert find_efficiency(quick, 2, FASTEST_BITS_PER_S, "undertow") < 0.9


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01, 90.0, float("nan")])
def test_an_impossible_share_is_refused(share: float) -> None:
    schedule = find_schedule("undertow")
    with pytest.raises(ConfigError, match="is not a share: give more than 0 and at most 100 %"):
        find_bandwidth(MINE, 2, schedule, efficiency=share, setting=SETTING)
    with pytest.raises(ConfigError, match="is not a share: give more than 0 and at most 100 %"):
        find_hosts(MINE, 1e9, schedule, worth=share, setting=SETTING)


def test_every_run_is_told() -> None:
    progress = FakeProgress()
    find_bandwidth(MINE, 1, find_schedule("ddp"), efficiency=0.9, setting=SETTING, progress=progress)
    assert progress.said == ["ddp on 1 hosts: 800 Gbit/s", "ddp on 1 hosts: 100 Mbit/s"]


@pytest.mark.parametrize(("hosts", "efficiency", "runs"), [(1, 0.9, 2), (2, 1.0, 1), (2, 0.9, 11)])
def test_a_search_is_as_many_laps_as_its_longest_course(hosts: int, efficiency: float, runs: int) -> None:
    progress = FakeProgress()
    find_bandwidth(MINE, hosts, find_schedule("ps"), efficiency=efficiency, setting=SETTING, progress=progress)
    assert len(progress.said) == runs
    assert progress.done == pytest.approx(weigh_search(hosts, SETTING))
    assert weigh_search(hosts, SETTING) == pytest.approx(11 * weigh(make_topology(hosts, 1e9), SETTING))


# Hosts


def test_the_more_a_host_must_bring_the_fewer_are_worth_it() -> None:
    found = [find_hosts(MINE, 2e9, find_schedule("ddp"), worth=worth, setting=SETTING) for worth in (0.5, 0.7, 0.98)]
    counts = [hosts for hosts, _ in found]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] >= 1
    for hosts, speedup in found:
        assert speedup == pytest.approx(hosts * find_efficiency(MINE, hosts, 2e9, "ddp"))


def test_the_last_hosts_are_worth_it_and_the_next_ones_are_not() -> None:
    progress = FakeProgress()
    worth, schedule = 0.6, find_schedule("wfbp")
    hosts, speedup = find_hosts(MINE, 2e9, schedule, worth=worth, setting=SETTING, progress=progress)
    tried = [int(text.split()[2]) for text in progress.said]
    assert progress.expected == 0  # nobody knows when it ends
    assert tried == [2, 3, 4, 6, 8, 12, 16][: len(tried)]
    assert hosts == tried[-3]  # two in a row are not worth it
    before, after = ([1, *tried][index] for index in (-4, -2))
    assert speedup - before * find_efficiency(MINE, before, 2e9, "wfbp") >= worth * (hosts - before)
    assert after * find_efficiency(MINE, after, 2e9, "wfbp") - speedup < worth * (after - hosts)


def test_where_the_second_host_is_not_worth_it_one_is_the_answer() -> None:
    assert find_hosts(MINE, 1e8, find_schedule("ddp"), worth=0.9, setting=SETTING) == (1, 1.0)


def test_hosts_are_added_up_to_256(monkeypatch: pytest.MonkeyPatch) -> None:
    """With runs that take no time: every host brings a whole one."""

    class Linear:
        iteration_s = MINE.profile.compute_s

    monkeypatch.setattr("undertow.tools.sim.whatif.run", lambda *arguments: Linear)
    assert find_hosts(MINE, 1e9, find_schedule("ddp"), worth=1.0, setting=SETTING) == (256, pytest.approx(256))
