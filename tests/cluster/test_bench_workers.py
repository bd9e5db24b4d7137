"""Real workers of the bench, under several systems at once, over loopback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import is_alive
from undertow.errors import LabError
from undertow.tools.lab.bench.messages import Assignment, Lap
from undertow.tools.lab.bench.worker_group import WorkerGroup
from undertow.tools.lab.network import Network, open_loopback
from undertow.tools.lab.systems import find_system

# torch DDP with a short life: what is true of it in the first laps is true of `ddp`.
PLUG_IN = """
import os, time
from undertow.tools.lab.systems.others import Ddp

class Mortal(Ddp):
    name = "mortal"
    laps = 0

    def join(self):
        super().join()
        print("hello from a library")
        os.system("echo hello from another program")

    def flush(self):
        self.laps += 1
        if self.laps == 3 and os.environ["RANK"] == "1":
            raise ArithmeticError("rank 1 had enough")
        if self.laps == 3:
            time.sleep(600)
"""


SYSTEMS = ("undertow", "mortal")


def install(folder: Path) -> None:
    (folder / "mortal_system.py").write_text(PLUG_IN)
    info = folder / "mortal_system-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mortal-system\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[undertow.systems]\nmortal = mortal_system:Mortal\n")


def pids_of(group: WorkerGroup) -> list[int]:
    return [worker.process.pid for worker in group._workers]


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What real workers of several systems said, started together because each imports torch."""
    folder = tmp_path_factory.mktemp("plug-in")
    install(folder)
    told: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, sys.path)]))
        network = stack.enter_context(open_loopback(2))
        groups = [_start_real(name, network, stack) for name in SYSTEMS]
        told["pids"] = [pid for group in groups for pid in pids_of(group)]
        told["ready"] = {group.name: group.wait_until_ready() for group in groups}
        told["laps"] = {group.name: [group.run(n, timeout_s=60) for n in (3, 2)] for group in groups}
        with pytest.raises(LabError) as error:
            groups[-1].run(2, timeout_s=60)
        told["failure"] = str(error.value).splitlines()
    yield told
    sys.modules.pop("mortal_system", None)


def _start_real(name: str, network: Network, stack: ExitStack) -> WorkerGroup:
    assignment = Assignment(model="googlenet", system=name, scale=200.0, batch=1)
    return stack.enter_context(
        WorkerGroup(network, find_system(name), assignment, {**os.environ, "UNDERTOW_PLAN": "dense"})
    )


def laps_of(heard: Mapping[str, Any], name: str) -> Sequence[Lap]:
    return [lap for laps in heard["laps"][name] for lap in laps]


@pytest.mark.parametrize("name", SYSTEMS)
def test_real_workers_get_ready(heard: Mapping[str, Any], name: str) -> None:
    ready = heard["ready"][name]
    assert ready.batch == 1
    assert ready.gradient_bytes == pytest.approx(4 * 6_998_552 / 200, rel=0.05)
    assert ready.compute_s == pytest.approx(1 / 257.0)


@pytest.mark.parametrize("name", SYSTEMS)
def test_real_workers_make_laps(heard: Mapping[str, Any], name: str) -> None:
    first, second = heard["laps"][name]
    assert [len(lap.ends_s) for lap in (*first, *second)] == [3, 3, 2, 2]
    for before, after in zip(first, second, strict=True):
        ends_s = [*before.ends_s, *after.ends_s]
        assert ends_s == sorted(ends_s)
        assert before.cpu_s > 0


def test_undertow_and_ddp_leave_the_same_parameters(heard: Mapping[str, Any]) -> None:
    undertow, ddp = ([[lap.digest for lap in laps] for laps in heard["laps"][name]] for name in SYSTEMS)
    assert ddp == undertow
    assert ddp[0] != ddp[1]  # the second lap went on from the first


def test_each_system_counts_in_its_own_way(heard: Mapping[str, Any]) -> None:
    assert [lap.sent_bytes for lap in laps_of(heard, "mortal")] == [None] * 4
    for lap in laps_of(heard, "undertow"):
        whole = heard["ready"]["undertow"].gradient_bytes * len(lap.ends_s)  # 2 S (P - 1) / P
        assert whole < lap.sent_bytes < 1.25 * whole


def test_a_real_worker_that_fails_tells_its_traceback(heard: Mapping[str, Any]) -> None:
    lines = heard["failure"]
    assert lines[0] == "mortal with googlenet: the worker on host1 ended with code 1"
    assert any(line.endswith("ArithmeticError: rank 1 had enough") for line in lines[1:])


def test_no_real_worker_is_left(heard: Mapping[str, Any]) -> None:
    assert len(heard["pids"]) == 2 * len(SYSTEMS)
    assert [pid for pid in heard["pids"] if is_alive(pid)] == []
