"""Groups of workers of a share bench: every job has three, so that none has to be started between two laps.

In: a plan, a network.  Out: for each arrangement one group per job; inside of the block all of them live.
Jobs without turns are alone or together with the same workers.  Those that take turns share an arbiter on every host.
A job that takes turns alone has arbiters of its own: at the others' it would be in company even while those have
nothing to do.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from undertow.crossover.contact import ask_status
from undertow.crossover.turns import LEASE_S
from undertow.errors import LabError
from undertow.observe.report.shared_jobs import Arrangement
from undertow.progress import Progress
from undertow.settings import read_settings
from undertow.tools.lab.bench.messages import Ready
from undertow.tools.lab.bench.series import COMPUTE
from undertow.tools.lab.bench.worker_group import WorkerGroup
from undertow.tools.lab.network import Network
from undertow.tools.lab.sharing.plan import Job, SharePlan
from undertow.tools.lab.systems import find_system

START_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.02
FAREWELL_S = 5.0

Environments = Sequence[Mapping[str, str]]


@contextmanager
def open_arbiters(hosts: int, environ: Mapping[str, str]) -> Iterator[Environments]:
    """Start one arbiter per host for the time of the block."""
    with ExitStack() as stack:
        # Not in TMPDIR, whose path may be too long for a socket; private by its mode.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="undertow-", dir="/tmp")))
        paths = [folder / f"{host}.sock" for host in range(hosts)]
        started = [(stack.enter_context(_open_arbiter(path, environ)), path) for path in paths]
        for process, path in started:
            _wait_for(process, path)
        yield [{"UNDERTOW_SHARE_SOCKET": str(path)} for path in paths]


@contextmanager
def _open_arbiter(path: Path, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "undertow.crossover.arbiter", str(path), str(LEASE_S)]
    with path.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(FAREWELL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def check_arbiters(environments: Environments, jobs: int) -> None:
    """Raise `LabError` if a worker is missing: without an arbiter it computes at any time, and says nothing."""
    for host, own in enumerate(environments):
        status = ask_status(Path(read_settings(own).share_socket))
        found = 0 if status is None else sum(len(device.jobs) for device in status.devices)
        if status is None or found != jobs or len(status.devices) != 1:
            raise LabError(
                f"the arbiter of host {host} knows {found} jobs of {jobs} on one device: the others did not take "
                "turns, so these figures mean nothing"
            )


def _wait_for(process: subprocess.Popen[bytes], path: Path) -> None:
    """Return when the arbiter listens."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
            visitor.connect(str(path))
            return
        time.sleep(LOOK_EVERY_S)
    words = path.with_suffix(".log").read_text(errors="replace").splitlines()[-1:]
    raise LabError(f"an arbiter did not start: {words[0] if words else 'it said nothing'}")


@dataclass(frozen=True, kw_only=True)
class BenchContext:
    """Network, variables and devices of the workers."""

    network: Network
    environ: Mapping[str, str]
    devices: str  # a folder
    progress: Progress

    def open_group(self, plan: SharePlan, job: Job, system: str, by_host: Environments = ()) -> WorkerGroup:
        environ = {**self.environ, "UNDERTOW_SHARE": "on" if by_host else "off"}
        assignment = plan.assign(job.model, system, devices=self.devices)
        return WorkerGroup(self.network, find_system(system), assignment, environ, by_host=by_host)


@dataclass(frozen=True, kw_only=True)
class WorkerGroups:
    """Groups of workers for all arrangements."""

    by_arrangement: Mapping[Arrangement, Sequence[WorkerGroup]]  # each in the order of the jobs
    ready: Sequence[Ready]  # of each job
    arbiters: Sequence[tuple[Environments, int]]  # where they are, and how many jobs each of them has

    def check_turns(self) -> None:
        """Raise `LabError` if a worker that should take turns does not."""
        for environments, jobs in self.arbiters:
            check_arbiters(environments, jobs)


@contextmanager
def open_groups(plan: SharePlan, context: BenchContext) -> Iterator[WorkerGroups]:
    """Start one group after the other, so that no other uses the links meanwhile."""
    with ExitStack() as stack:

        def start(job: Job, system: str = plan.mode.value, by_host: Environments = ()) -> tuple[WorkerGroup, Ready]:
            context.progress.say(f"starting {', '.join(plan.labels)}")
            group = stack.enter_context(context.open_group(plan, job, system, by_host))
            ready = group.wait_until_ready()
            context.progress.advance()
            return group, ready

        plain = [start(job) for job in plan.jobs]
        *own, common = (stack.enter_context(open_arbiters(plan.hosts, context.environ)) for _ in (*plan.jobs, None))
        turns, shared = (
            [
                start(job, by_host=describe_terms(job, label, at))
                for job, label, at in zip(plan.jobs, plan.labels, arbiters, strict=True)
            ]
            for arbiters in (own, [common] * len(plan.jobs))
        )
        by_arrangement = {
            Arrangement.ALONE: plain,
            Arrangement.TURNS: turns,
            Arrangement.TOGETHER: plain,
            Arrangement.CROSSOVER: shared,
        }
        if plan.is_real:
            by_arrangement[Arrangement.COMPUTE] = [start(job, COMPUTE) for job in plan.jobs]
        yield WorkerGroups(
            by_arrangement={one: [group for group, _ in started] for one, started in by_arrangement.items()},
            ready=[ready for _, ready in plain],
            arbiters=[*((at, 1) for at in own), (common, len(plan.jobs))],
        )


def describe_terms(job: Job, label: str, arbiters: Environments) -> list[dict[str, str]]:
    """Return the variables of each host for the workers of a job that takes turns."""
    terms = {
        "UNDERTOW_SHARE_NAME": label,
        "UNDERTOW_SHARE_WEIGHT": str(job.weight),
        "UNDERTOW_SHARE_URGENT": "on" if job.is_urgent else "off",
    }
    return [{**terms, **own} for own in arbiters]
