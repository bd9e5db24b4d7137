"""A whole share bench without a cluster: which groups start, which train together, and the results."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.bench_fakes import FakeProgress, Net, make_hosts
from undertow.errors import LabError
from undertow.observe.report.points import write_results
from undertow.observe.report.shared_jobs import Arrangement
from undertow.tools.lab import link_check
from undertow.tools.lab.bench.bench import BenchAborted
from undertow.tools.lab.bench.messages import Assignment, Lap, Ready
from undertow.tools.lab.sharing import worker_groups as groups_module
from undertow.tools.lab.sharing.bench import run_share_bench
from undertow.tools.lab.sharing.plan import Job, Mode, SharePlan
from undertow.tools.lab.sharing.results import Case, ShareResults, make_share_table

COMPUTE_S = {"resnet50": 1.0, "vgg19": 3.0}
GRADIENT_BYTES = 1_000_000
STEP_BITS = 2 * GRADIENT_BYTES * 3 / 4 * 8
WARM_UP_STEPS = 16


@dataclass
class World:
    """Worker groups that train on one clock: alone as fast as the links allow, together as the test specifies."""

    company: Mapping[str, float]  # factor of a step's time beside other jobs, with sharing "off" or "on"
    turns: float = 1.0  # the same for a job that takes turns alone
    sent_bytes: int = 0  # per step, by the host that sends most: the last
    net: Net = field(default_factory=lambda: Net(hosts=make_hosts(4)))
    progress: FakeProgress = field(default_factory=FakeProgress)
    now_s: float = 100.0
    started: list[tuple[Assignment, Mapping[str, str], Sequence[Mapping[str, str]]]] = field(default_factory=list)
    alive: int = 0
    arbiters: int = 0
    checked: list[tuple[str, int]] = field(default_factory=list)  # arbiters, and the number of jobs expected
    training: list[Fake] = field(default_factory=list)
    laps: list[tuple[str, ...]] = field(default_factory=list)  # the groups that trained at the same time
    failure: tuple[int, BaseException] | None = None  # in which lap, and the error

    @contextmanager
    def open_arbiters(self, hosts: int) -> Iterator[list[dict[str, str]]]:
        self.arbiters += 1
        yield [{"UNDERTOW_SHARE_SOCKET": f"{self.arbiters}-{host}"} for host in range(hosts)]

    def check_arbiters(self, environments: Sequence[Mapping[str, str]], jobs: int) -> None:
        self.checked.append((environments[0]["UNDERTOW_SHARE_SOCKET"], jobs))

    @contextmanager
    def open_network(self, hosts: int) -> Iterator[Net]:
        yield self.net

    def run(self, **changes: Any) -> ShareResults:
        jobs = (Job(model="resnet50"), Job(model="vgg19", weight=2.0, is_urgent=True))
        plan = SharePlan(
            **{"jobs": jobs, "bandwidths_gbit": (1.0,), "scale": 1.0, "rounds": 2, "lap_s": 30.0} | changes
        )
        environ = {"HOME": "/", "UNDERTOW_SHARE": "on"}
        return run_share_bench(
            plan,
            environ=environ,
            open_network=self.open_network,
            progress=self.progress,
            command="undertow share bench",
        )


class Fake:
    """Group of workers in this world."""

    world: World

    def __init__(
        self,
        network: Net,
        system: Any,
        assignment: Assignment,
        environ: Mapping[str, str],
        *,
        by_host: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.world.started.append((assignment, environ, by_host))
        self.warm_up_steps = WARM_UP_STEPS
        self.model = assignment.model
        self.shares = bool(by_host)
        self.number = len(self.world.started)
        self.name = f"{self.model}/{by_host[0]['UNDERTOW_SHARE_SOCKET'].split('-')[0] if by_host else 'none'}"
        self._steps = 0

    def __enter__(self) -> Fake:
        self.world.alive += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.world.alive -= 1

    def wait_until_ready(self) -> Ready:
        return Ready(batch=32, gradient_bytes=GRADIENT_BYTES, compute_s=COMPUTE_S[self.model])

    def run(self, steps: int, *, timeout_s: float) -> list[Lap]:
        """Warm up."""
        assert self.world.training == []
        self.world.now_s += 10.0
        return self._make_laps(steps, 1.0, timeout_s)

    def begin_lap(self, steps: int) -> None:
        if not self.world.training:
            self.world.laps.append(())
            self.world.now_s += 10.0
        self.world.training.append(self)
        self.world.laps[-1] += (self.name,)
        self._steps = steps

    def end_lap(self, *, timeout_s: float) -> list[Lap]:
        world = self.world
        world.training.remove(self)
        if world.failure and world.failure[0] == len(world.laps):
            raise world.failure[1]
        is_alone = len(world.laps[-1]) == 1
        slow_down = (world.turns if self.shares else 1.0) if is_alone else world.company["on" if self.shares else "off"]
        return self._make_laps(self._steps, slow_down, timeout_s)

    def _make_laps(self, steps: int, slow_down: float, timeout_s: float) -> list[Lap]:
        rate = self.world.net.shaped_bits_per_s[-1]
        assert rate is not None
        step_s = slow_down * (COMPUTE_S[self.model] + 1.25 * STEP_BITS / rate)  # links never reach their nominal rate
        assert timeout_s > 60 + steps * step_s
        ends_s = [self.world.now_s + step_s * (step + 1) for step in range(steps)]
        self.world.net.sent_bytes += self.world.sent_bytes // len(self.world.net.hosts) * steps
        return [Lap(ends_s=ends_s, cpu_s=0.25, sent_bytes=None, digest=1)] * len(self.world.net.hosts)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(company={"off": 2.0, "on": 1.25}, turns=1.0)
    monkeypatch.setattr(groups_module, "WorkerGroup", type("Scripted", (Fake,), {"world": made}))
    monkeypatch.setattr(groups_module, "open_arbiters", made.open_arbiters)
    monkeypatch.setattr(groups_module, "check_arbiters", made.check_arbiters)
    monkeypatch.setattr(link_check, "check_links", lambda network, rate: made.net.checked_bits_per_s.append(rate))
    return made


def rows_of(case: Case) -> dict[str, Any]:
    return {row.arrangement: row for row in case.rows}


def render(case: Case) -> str:
    text = io.StringIO()
    Console(file=text, width=160, color_system=None).print(make_share_table(case))
    return text.getvalue()


def test_every_job_has_workers_for_every_way_to_train(world: World) -> None:
    world.run()
    assert [assignment.model for assignment, _, _ in world.started] == ["resnet50", "vgg19"] * 3
    assert {assignment.system for assignment, _, _ in world.started} == {Mode.PLAIN.value}
    assert world.alive == 0


def test_all_workers_of_a_host_share_its_device(world: World) -> None:
    world.run()
    folders = {assignment.devices for assignment, _, _ in world.started}
    assert len(folders) == 1
    assert None not in folders


def test_who_takes_turns_is_told_so_and_nobody_else(world: World) -> None:
    world.run()
    assert [environ["UNDERTOW_SHARE"] for _, environ, _ in world.started] == ["off", "off", "on", "on", "on", "on"]
    assert [len(by_host) for _, _, by_host in world.started] == [0, 0, 4, 4, 4, 4]
    own, other, first, second = ([one["UNDERTOW_SHARE_SOCKET"] for one in b] for _, _, b in world.started[2:])
    assert first == second == ["3-0", "3-1", "3-2", "3-3"]
    assert not set(own) & {*other, *first}
    assert not set(other) & set(first)
    terms = world.started[5][2][1]
    assert (terms["UNDERTOW_SHARE_NAME"], terms["UNDERTOW_SHARE_WEIGHT"]) == ("vgg19", "2.0")
    assert (terms["UNDERTOW_SHARE_URGENT"], world.started[4][2][1]["UNDERTOW_SHARE_URGENT"]) == ("on", "off")


def test_after_the_rounds_all_arbiters_must_have_their_jobs(world: World) -> None:
    world.run(bandwidths_gbit=(1.0, 2.0))
    assert world.checked == [("1-0", 1), ("2-0", 1), ("3-0", 2)] * 2


def test_every_arrangement_has_its_lap_in_every_round_and_others_begin(world: World) -> None:
    world.run()
    together, crossover = ("resnet50/none", "vgg19/none"), ("resnet50/3", "vgg19/3")
    turns = [("resnet50/1",), ("vgg19/2",)]
    assert world.laps[:4] == [together, together, crossover, crossover]  # rehearsals
    once = [("resnet50/none",), ("vgg19/none",), *turns, together, crossover]
    assert world.laps[4:10] == once
    assert world.laps[10:] == [*once[3:], *once[:3]]
    starts, check, warm_ups, rehearsals = 6, 1, 6, 4
    assert world.progress.expected == world.progress.done == starts + check + warm_ups + rehearsals + 12


def test_the_figures_are_those_of_the_laps(world: World) -> None:
    world.turns = 1.005
    [case] = world.run().cases
    network_s = 1.25 * STEP_BITS / 1e9
    alone_s = [1 + network_s, 3 + network_s]
    assert [job.alone_s for job in case.jobs] == pytest.approx(alone_s)
    assert [job.exposed_s for job in case.jobs] == pytest.approx([network_s] * 2)
    assert [job.turns_overhead for job in case.jobs] == pytest.approx([0.005] * 2)
    rows = rows_of(case)
    assert list(rows) == ["one after the other", "alone, taking turns", "together", "crossover"]
    assert (rows["together"].gain, rows["crossover"].gain) == (pytest.approx(1.0), pytest.approx(1.6))
    assert rows["crossover"].slow_downs == pytest.approx([1.25, 1.25])
    assert (rows["crossover"].gain_low, rows["crossover"].gain_high) == (pytest.approx(1.6), pytest.approx(1.6))
    ideal = (4 + 2 * network_s) / 4
    assert rows["crossover"].ideal == pytest.approx(ideal)
    assert rows["crossover"].of_ideal == pytest.approx(1.6 / ideal)
    assert len(rows["together"].laps_s) == 2
    assert rows["alone, taking turns"].gain is None


def test_times_are_those_of_hosts_that_are_not_slowed_down(world: World) -> None:
    [case] = world.run(slowdown=4.0, bandwidths_gbit=(4.0,)).cases
    assert world.net.shaped_bits_per_s[-1] == pytest.approx(1e9)
    network_s = 1.25 * STEP_BITS / 1e9
    assert case.jobs[0].alone_s == pytest.approx((1 + network_s) / 4)
    assert case.jobs[0].compute_s == pytest.approx(1 / 4)
    assert case.jobs[0].exposed_s == pytest.approx(network_s / 4)
    assert rows_of(case)["crossover"].laps_s[1][0] == pytest.approx(1.25 * (1 + network_s) / 4)
    assert case.jobs[0].exposed_over_compute == pytest.approx(network_s)
    assert rows_of(case)["crossover"].steps_s[0] == pytest.approx(1.25 * (1 + network_s) / 4)


def test_links_that_are_never_at_rest_are_a_limit_of_their_own(world: World) -> None:
    world.sent_bytes = 500_000_000  # four seconds of a link of 1 Gbit/s, and headers: more than a step of both computes
    [case] = world.run(slowdown=2.0).cases
    links_s = 4.0 * 1514 / 1448
    assert [job.links_s for job in case.jobs] == [pytest.approx(links_s)] * 2
    alone_s = sum(job.alone_s for job in case.jobs)
    assert rows_of(case)["crossover"].ideal == pytest.approx(alone_s / (2 * links_s))
    assert "its bytes fill a link for 4182 ms" in render(case)


def test_a_ratio_finds_its_bandwidth(world: World) -> None:
    cases = world.run(ratios=(0.5, 1.0), bandwidths_gbit=()).cases
    assert [case.ratio for case in cases] == [0.5, 1.0]
    assert [case.jobs[0].exposed_over_compute for case in cases] == pytest.approx([0.5, 1.0], rel=0.04)
    assert len(world.started) == 1 + 6  # one more, to find the bandwidths
    assert world.progress.expected == world.progress.done  # whether or not that took all tries
    assert world.net.checked_bits_per_s == [case.bandwidth_gbit * 1e9 for case in cases if case.bandwidth_gbit]


def test_also_jobs_that_hide_what_they_can_are_measured_where_plain_ones_wait(world: World) -> None:
    world.run(ratios=(0.5,), bandwidths_gbit=(), mode=Mode.EVERYTHING)
    assert [assignment.system for assignment, _, _ in world.started] == [Mode.PLAIN.value, *["undertow"] * 6]


def test_what_was_measured_before_a_failure_is_kept(world: World) -> None:
    world.failure = (22, LabError("vgg19 is gone\nand more"))
    with pytest.raises(BenchAborted, match="vgg19 is gone") as error:
        world.run(bandwidths_gbit=(1.0, 2.0))
    assert [case.bandwidth_gbit for case in error.value.results.cases] == [1.0]
    assert error.value.results.notes == ["Aborted: vgg19 is gone"]
    assert world.alive == 0


def test_links_that_are_not_what_they_claim_end_the_bench(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def refuse(network: object, rate: float) -> None:
        tries.append(rate)
        raise LabError("a link is slow")

    monkeypatch.setattr(link_check, "check_links", refuse)
    with pytest.raises(BenchAborted, match="a link is slow"):
        world.run()
    assert len(tries) == 3
    assert world.laps == []


def test_the_table_has_a_row_for_every_arrangement(world: World) -> None:
    text = render(world.run().cases[0])
    for arrangement in (one.value for one in Arrangement if one is not Arrangement.COMPUTE):
        assert arrangement in text
    assert "resnet50 and vgg19, plain, 4 hosts, 1 Gbit/s" in text
    assert "vgg19, weight 2, urgent: computes 3000 ms and waits 15 ms (m/c 0.005)" in text
    [line] = [line for line in text.splitlines() if line.split()[:1] == ["crossover"]]
    assert line.split()[1:] == [
        *("1269", "1.250", "3769", "1.250", "1.600", "1.600–1.600", "1.008", "158.8", "1.010", "0.03")
    ]


def test_the_file_has_everything(world: World, tmp_path: Path) -> None:
    results = world.run()
    write_results(results, tmp_path / "share.json")
    read = json.loads((tmp_path / "share.json").read_text())
    assert (read["format"], read["command"]) == (1, "undertow share bench")
    assert set(read["versions"]) >= {"undertow", "torch"}
    assert read["cases"][0]["jobs"][1]["model"] == "vgg19"
    assert read["cases"][0]["rows"][3]["gain"] == pytest.approx(1.6)
