"""A whole share bench over loopback: real workers, real arbiters, quick devices."""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench_fakes import FakeProgress
from tests.support.command import is_alive
from undertow.crossover.contact import ask_status
from undertow.errors import LabError, UndertowError
from undertow.tools.lab.network import open_loopback
from undertow.tools.lab.replay.device import place_device
from undertow.tools.lab.sharing import bench as bench_module
from undertow.tools.lab.sharing import worker_groups as groups_module
from undertow.tools.lab.sharing.bench import run_share_bench
from undertow.tools.lab.sharing.plan import Job, SharePlan
from undertow.tools.lab.sharing.worker_groups import (
    BenchContext,
    Environments,
    WorkerGroups,
    check_arbiters,
    list_share_variables,
    open_arbiters,
)
from undertow.tools.lab.systems.undertow import Undertow

HOSTS = 2
# A hundredth of the time, and of the bytes: nothing here is about speed.
PLAN = SharePlan(
    jobs=(Job(model="googlenet"), Job(model="googlenet", weight=2.0)),
    hosts=HOSTS,
    bandwidths_gbit=(None,),
    scale=200.0,
    slowdown=0.01,
    rounds=2,
    lap_s=0.1,
)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextmanager
def open_few_groups(plan: SharePlan, site: BenchContext, told: dict[str, Any]) -> Iterator[WorkerGroups]:
    """Workers that take turns, in all arrangements: every one more imports torch."""
    with ExitStack() as stack:
        arbiters = stack.enter_context(open_arbiters(plan.hosts))
        groups = [
            stack.enter_context(site.open_group(plan, job, plan.mode.value, list_share_variables(job, label, arbiters)))
            for job, label in zip(plan.jobs, plan.labels, strict=True)
        ]
        yield WorkerGroups(
            by_arrangement=dict.fromkeys(plan.arrangements, groups),
            ready=[group.wait_until_ready() for group in groups],
            arbiters=[(arbiters, len(plan.jobs))],
        )
        devices = [place_device(site.devices, host).read_bytes() for host in range(plan.hosts)]
        told["free_at_s"] = [free_at_s for device in devices for (free_at_s,) in struct.iter_unpack("=d", device)]


@pytest.fixture(scope="module")
def seen() -> Mapping[str, Any]:
    """What came of a bench, and what its arbiters knew at its end."""
    told: dict[str, Any] = {"status": []}

    def look(environments: Environments, jobs: int) -> None:
        check_arbiters(environments, jobs)
        told["status"] += [ask_status(Path(own["UNDERTOW_SHARE_SOCKET"])) for own in environments]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups_module, "check_arbiters", look)
        patch.setattr(bench_module, "open_groups", partial(open_few_groups, told=told))
        patch.setattr(Undertow, "warm_up_steps", 5)
        told["results"] = run_share_bench(
            PLAN,
            environ=environment(),
            open_network=open_loopback,
            progress=FakeProgress(),
            command="undertow share bench",
        )
    return told


def test_every_arrangement_is_measured(seen: Mapping[str, Any]) -> None:
    [case] = seen["results"].cases
    assert [row.arrangement for row in case.rows] == [
        *("one after the other", "alone, taking turns", "together", "crossover")
    ]
    for row in case.rows:
        assert [len(lap_s) for lap_s in row.laps_s] == [2, 2]
        assert all(step_s > 0 for step_s in row.steps_s)


def test_the_workers_of_a_host_have_one_device(seen: Mapping[str, Any]) -> None:
    assert len(seen["free_at_s"]) == HOSTS
    assert all(0 < free_at_s < time.monotonic() for free_at_s in seen["free_at_s"])


def test_workers_take_turns_at_the_arbiter_of_their_host(seen: Mapping[str, Any]) -> None:
    assert len(seen["status"]) == HOSTS
    for rank, status in enumerate(seen["status"]):
        [device] = status.devices
        found = {job.name: job for job in device.jobs}
        assert sorted(found) == ["googlenet 1", "googlenet 2"]
        assert [found[name].weight for name in sorted(found)] == [1.0, 2.0]
        for job in device.jobs:
            assert (job.ranks, job.world_size) == ([rank], HOSTS)
            assert job.turns > 0
            assert job.steps > 0


def test_nobody_is_left(seen: Mapping[str, Any]) -> None:
    jobs = [job for status in seen["status"] for device in status.devices for job in device.jobs]
    pids = [*(status.pid for status in seen["status"]), *(pid for job in jobs for pid in job.pids)]
    assert len(pids) == HOSTS + 2 * HOSTS
    assert [pid for pid in pids if is_alive(pid)] == []


def test_workers_that_do_not_take_turns_are_found_out() -> None:
    with (
        open_arbiters(1) as environments,
        pytest.raises(LabError, match="the arbiter of host 0 knows 0 jobs of 2"),
    ):
        check_arbiters(environments, 2)
    assert not Path(environments[0]["UNDERTOW_SHARE_SOCKET"]).parent.exists()


def test_an_arbiter_that_does_not_start_is_an_error_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "undertow").mkdir()
    (tmp_path / "undertow" / "__init__.py").write_text("raise ImportError('not this one')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        pytest.raises(UndertowError, match=r"the arbiter could not be started: .*not this one"),
        open_arbiters(1),
    ):
        raise AssertionError("it has started")
