"""Groups of workers of a share bench: every job has three, so that none has to be started between two laps.

In: a plan, a network.  Out: for each arrangement one group per job, all of them running inside the block.
Jobs without turns use the same workers alone and together.  Jobs that take turns together share an arbiter on every
host.  A job that takes turns alone has arbiters of its own: those of the others would treat it as one of several jobs
even while the others are idle.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from undertow.crossover.contact import ask_status
from undertow.crossover.turns import LEASE_S
from undertow.errors import LabError
from undertow.launch.arbiter_process import start_arbiter
from undertow.observe.report.shared_jobs import Arrangement
from undertow.progress import Progress
from undertow.settings import read_settings
from undertow.tools.lab.bench.messages import Ready
from undertow.tools.lab.bench.series import COMPUTE
from undertow.tools.lab.bench.worker_group import WorkerGroup
from undertow.tools.lab.network import Network
from undertow.tools.lab.sharing.plan import Job, SharePlan
from undertow.tools.lab.systems import find_system

Environments = Sequence[Mapping[str, str]]


@contextmanager
def open_arbiters(hosts: int) -> Iterator[Environments]:
    """Run one arbiter per host inside the block, and yield the variables with which workers find it."""
    with ExitStack() as stack:
        # Not in TMPDIR, whose path may be too long for a socket; private by its mode.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="undertow-", dir="/tmp")))
        paths = [folder / f"{host}.sock" for host in range(hosts)]
        for path in paths:
            process = start_arbiter(path, LEASE_S).process
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield [{"UNDERTOW_SHARE_SOCKET": str(path)} for path in paths]


def check_arbiters(environments: Environments, jobs: int) -> None:
    """Raise `LabError` if a worker has no arbiter: then it computes at any time, without a warning."""
    for host, own in enumerate(environments):
        status = ask_status(Path(read_settings(own).share_socket))
        found = 0 if status is None else sum(len(device.jobs) for device in status.devices)
        if status is None or found != jobs or len(status.devices) != 1:
            raise LabError(
                f"the arbiter of host {host} knows {found} jobs of {jobs} on one device: the others did not take "
                "turns, so these figures are meaningless"
            )


@dataclass(frozen=True, kw_only=True)
class BenchContext:
    """Network, variables and devices of the workers."""

    network: Network
    environ: Mapping[str, str]
    devices: str  # the folder of the devices
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
    arbiters: Sequence[tuple[Environments, int]]  # of all hosts, and how many jobs each of them has

    def check_turns(self) -> None:
        """Raise `LabError` if a worker that should take turns does not."""
        for environments, jobs in self.arbiters:
            check_arbiters(environments, jobs)


@contextmanager
def open_groups(plan: SharePlan, context: BenchContext) -> Iterator[WorkerGroups]:
    """Start one group after another, so that no other uses the links meanwhile."""
    with ExitStack() as stack:

        def start(job: Job, system: str = plan.mode.value, by_host: Environments = ()) -> tuple[WorkerGroup, Ready]:
            context.progress.say(f"starting {', '.join(plan.labels)}")
            group = stack.enter_context(context.open_group(plan, job, system, by_host))
            ready = group.wait_until_ready()
            context.progress.advance()
            return group, ready

        plain = [start(job) for job in plan.jobs]
        *own, common = (stack.enter_context(open_arbiters(plan.hosts)) for _ in (*plan.jobs, None))
        turns, shared = (
            [
                start(job, by_host=list_share_variables(job, label, at))
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


def list_share_variables(job: Job, label: str, arbiters: Environments) -> list[dict[str, str]]:
    """Return the environment variables, for each host, of a job that takes turns."""
    common = {
        "UNDERTOW_SHARE_NAME": label,
        "UNDERTOW_SHARE_WEIGHT": str(job.weight),
        "UNDERTOW_SHARE_URGENT": "on" if job.is_urgent else "off",
    }
    return [{**common, **own} for own in arbiters]
