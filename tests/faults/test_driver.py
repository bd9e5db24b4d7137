"""The driver itself: one seed is one run, time is virtual, and a link that breaks delivers a prefix."""

from __future__ import annotations

import random
from typing import Any

import pytest

from undertow.engine.core import frames
from undertow.engine.core.frames import Header, Kind
from undertow.errors import ConfigError
from undertow.tools.faults.cluster import LONGEST_DELAY_S, Cluster
from undertow.tools.faults.event_log import SHOWN_EVENTS, Broken, Case, EventLog
from undertow.tools.faults.scenarios import SCENARIOS, find_scenario
from undertow.tools.faults.scenarios import seeds as seeds_module
from undertow.tools.faults.scenarios.seeds import run_seed
from undertow.tools.faults.whole_job import WholeJob
from undertow.tools.faults.worker import MOMENT, Script, VirtualLoop, Wait
from undertow.tools.virtual.world import Clock


def make_cluster(seed: int = 3) -> Cluster:
    return Cluster(Case(seed, random.Random(seed)), fewest_workers=3, most_workers=3)


# Seeds


@pytest.mark.parametrize("name", [scenario.name for scenario in SCENARIOS])
def test_a_seed_replays_to_the_same_events(name: str) -> None:
    for seed in range(5):
        first, second = (run_seed(seed, find_scenario(name)) for _ in range(2))
        assert first.log.lines() == second.log.lines()
        assert first.broken == second.broken == ""


def test_the_scenario_that_a_seed_picks_is_the_same_run_when_it_is_asked_for() -> None:
    picked = run_seed(11)
    asked = run_seed(11, picked.scenario)
    assert picked.log.lines() == asked.log.lines()
    assert asked.replay == picked.replay == "undertow faults --seed 11"


def test_another_scenario_than_the_seeds_own_is_named_in_the_replay() -> None:
    other = next(one for one in SCENARIOS if one is not run_seed(11).scenario)
    assert run_seed(11, other).replay == f"undertow faults --seed 11 --scenario {other.name}"


def test_every_scenario_is_picked_and_says_what_it_claims() -> None:
    total = sum(scenario.weight for scenario in SCENARIOS)
    assert all(scenario.weight * 2000 // total > 50 for scenario in SCENARIOS)
    assert all(scenario.claim.endswith(".") for scenario in SCENARIOS)


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no scenario 'flood'; there are schedule, credit"):
        find_scenario("flood")


def test_without_torch_the_gates_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds_module.importlib.util, "find_spec", lambda name: None)
    outcome = run_seed(0, find_scenario("gates"))
    assert (outcome.skipped, outcome.broken, len(outcome.log)) == ("torch is not installed", "", 0)
    assert not run_seed(0, find_scenario("early")).skipped


def test_a_fault_changes_nothing_before_its_event() -> None:
    stories = []
    for event in (10**6, 40):
        cluster = make_cluster()
        WholeJob(cluster)
        cluster.plan(event, lambda cluster=cluster: cluster.kill(1, lambda frames: 0))  # type: ignore[misc]
        cluster.run()
        stories.append(cluster.log.lines())
    told = next(index for index, line in enumerate(stories[1]) if "is killed" in line)
    assert stories[0][:told] == stories[1][:told]
    assert told > 40


# Stories


def test_a_log_shows_the_last_events_without_routine() -> None:
    log = EventLog()
    for event in range(200):
        log.note(f"event {event}")
        log.note_delivery(0, 1, Header(Kind.HEARTBEAT), None)
    lines = log.last_lines()
    assert lines[:2] == ["event 0", f"... {200 - SHOWN_EVENTS - 1} events ..."]
    assert lines[2:] == [f"event {event}" for event in range(200 - SHOWN_EVENTS, 200)]
    assert len(log.lines()) == 400


def test_the_engines_warnings_are_events(caplog: pytest.LogCaptureFixture) -> None:
    outcome = next(outcome for seed in range(9) if (outcome := run_seed(seed, find_scenario("nonsense"))).log)
    assert any(line.startswith("log: dropped a frame from rank") for line in outcome.log.lines())
    assert not caplog.records


# Time


def test_timers_run_when_they_are_due_and_in_order() -> None:
    clock, ran = Clock(), list[str]()
    loop = VirtualLoop(clock)
    loop.later(2.0, lambda: ran.append("second"))
    loop.later(1.0, lambda: ran.append("first"))
    assert loop.next_due_s == 1.0
    clock.now_s = 0.9
    assert not loop.is_due
    clock.now_s = 2.0
    assert loop.is_due
    loop.run_due()
    assert ran == ["first", "second"]


def test_ticks_come_every_second_until_none_is_registered() -> None:
    clock, ticks = Clock(), list[float]()
    loop = VirtualLoop(clock)
    loop.every_tick(ticks.append)
    for now_s in (1.0, 1.5, 2.0, 9.0, 10.0):
        clock.now_s = now_s
        loop.run_due()
    assert ticks == [1.0, 2.0, 9.0, 10.0]  # one that was missed is not made up for
    loop.no_tick(ticks.append)
    clock.now_s = 20.0
    loop.run_due()
    assert loop.next_due_s == float("inf")


def test_what_is_posted_runs_in_order_also_when_the_engine_lags() -> None:
    loop, ran = VirtualLoop(Clock()), list[int]()
    loop.lags = True
    loop.post(ran.append, 1)
    assert loop.is_due
    assert ran == []
    loop.lags = False
    loop.post(ran.append, 2)
    assert ran == [1, 2]


def test_no_frame_between_running_workers_takes_longer_than_the_longest_delay() -> None:
    cluster = make_cluster()
    late = []

    def look() -> None:
        for link in cluster.network.links_with_frames():
            late.append(cluster.clock.now_s - cluster.network.waiting_since_s(link))

    cluster.invariants.further.append(look)
    cluster.time_share = 0.5
    cluster.start(0, iter_waits(Wait("a long time", lambda: cluster.clock.now_s > 30.0)))
    cluster.run()
    assert cluster.clock.now_s > 30.0
    assert 0.0 < max(late) <= LONGEST_DELAY_S + 1e-9  # times are sums


def iter_waits(*waits: Wait) -> Script:
    yield from waits


def test_a_deadlock_names_what_each_rank_waits_for() -> None:
    cluster = make_cluster()
    cluster.start(1, iter_waits(MOMENT, Wait("a miracle", lambda: False)))
    with pytest.raises(Broken, match=r"^deadlock: rank 1 waits for a miracle$"):
        cluster.run()


def test_a_stopped_worker_does_nothing_until_it_runs_again() -> None:
    cluster = make_cluster()
    cluster.start(2, iter_waits(MOMENT, MOMENT))
    cluster.stop(2)
    cluster.start(0, iter_waits(Wait("a while", lambda: cluster.clock.now_s > 5.0)))
    cluster.run()
    assert cluster.workers[2].script is not None
    assert cluster.network.frames_on((0, 2)) >= 5  # heartbeats
    cluster.resume(2)
    cluster.run()
    assert cluster.workers[2].script is None
    assert cluster.network.frames_on((0, 2)) == 0


# Links


def say(cluster: Cluster, link: tuple[int, int], step: int) -> None:
    header = Header(Kind.HEARTBEAT, step=step, rank=link[0], job=cluster.job)
    cluster.network.transports[link[0]].send(link[1], frames.pack(header))


def deliver_all(cluster: Cluster, link: tuple[int, int]) -> list[Any]:
    headers = []
    while cluster.network.frames_on(link):
        headers.append(cluster.network.deliver(*link))
    return headers


def test_of_a_killed_worker_a_prefix_arrives_and_then_the_end() -> None:
    cluster = make_cluster()
    for step in range(5):
        say(cluster, (1, 0), step)
    cluster.kill(1, lambda frames: max(0, frames - 3))
    assert [header and header.step for header in deliver_all(cluster, (1, 0))] == [0, 1, None]
    assert "rank 1 on host host1 was lost" in str(cluster.workers[0].group.waiters.error)


def test_a_cut_link_ends_in_both_directions() -> None:
    cluster = make_cluster()
    for link in ((0, 1), (1, 0)):
        say(cluster, link, 1)
    cluster.cut(0, 1, lambda frames: 0)
    assert deliver_all(cluster, (1, 0)) == [None]
    assert "rank 1 on host host1 was lost" in str(cluster.workers[0].group.waiters.error)
    assert deliver_all(cluster, (0, 1)) == [None]
    assert "rank 0 on host host0 was lost" in str(cluster.workers[1].group.waiters.error)
    assert cluster.workers[2].group.waiters.error is None


def test_a_record_keeps_bodies_as_they_were_sent() -> None:
    cluster = make_cluster()
    record = cluster.network.record = []
    body = bytearray(b"now")
    cluster.network.transports[0].send(1, b"header", body)
    body[:] = b"too"
    assert record == [(0, 1, b"header", b"now")]
