"""Record of how much device time each job used.

In: the arbiter's `Status`, repeatedly.  Out: the last figures of each job, and the gain of sharing on each device.
The arbiter forgets a job when its workers leave, so its figures are collected while it runs.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from undertow.crossover.contact import ask_status
from undertow.crossover.messages import DeviceStatus, JobStatus, Status
from undertow.errors import UndertowError
from undertow.launch.cleanup_guard import find_descendants

POLL_S = 0.5


@dataclass(frozen=True)
class JobUsage:
    """Use of all devices of this host by one job."""

    steps: int
    device_s: float
    waited_s: float  # for its turn
    network_s: float


class UsageLog:
    """Usage of the jobs that `launchers` (pids) started; `record` may be called from another thread."""

    def __init__(self, list_descendants: Callable[[int], list[int]] = lambda pid: find_descendants([pid])) -> None:
        self.launchers: list[int] = []
        self._list_descendants = list_descendants
        self._owners: dict[str, int | None] = {}  # launcher of each job identity; None: not in `launchers`
        self._seen: dict[tuple[int, str], JobStatus] = {}
        self._devices: dict[str, DeviceStatus] = {}

    def record(self, status: Status) -> None:
        for device in status.devices:
            owners = {job.job: self._find_owner(job) for job in device.jobs}
            for job in device.jobs:
                owner = owners[job.job]
                if owner is not None:
                    self._seen[owner, device.device] = job
            if any(owners.values()) and _order_key(device) >= _order_key(self._devices.get(device.device, device)):
                self._devices[device.device] = device

    def find(self, launcher: int) -> JobUsage | None:
        """Return the usage of this launcher's job; None if the job never connected to the arbiter."""
        seen = [job for (owner, _), job in self._seen.items() if owner == launcher]
        if not seen:
            return None
        return JobUsage(
            steps=max(job.steps for job in seen),
            device_s=sum(job.device_s for job in seen),
            waited_s=statistics.fmean(job.waited_s for job in seen),
            network_s=statistics.fmean(job.network_s for job in seen),
        )

    @property
    def devices(self) -> list[DeviceStatus]:
        """The most informative status of each device: the last one with the most jobs."""
        return list(self._devices.values())

    def _find_owner(self, job: JobStatus) -> int | None:
        if job.job not in self._owners:
            pids = set(job.pids)
            owners = (pid for pid in self.launchers if pids & set(self._list_descendants(pid)))
            self._owners[job.job] = next(owners, None)
        return self._owners[job.job]


def _order_key(device: DeviceStatus) -> tuple[int, int]:
    """Return a sort key: several jobs with a known gain are best, then more jobs are better."""
    jobs = len(device.jobs)
    return (jobs if jobs > 1 and device.gain is not None else 0), jobs


class ArbiterPoller:
    """A thread that queries the arbiter twice a second; errors are ignored, because jobs run without an arbiter too."""

    def __init__(self, path: Path, usage: UsageLog) -> None:
        self._path, self._usage = path, usage
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="undertow-arbiter-poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(POLL_S):
            try:
                status = ask_status(self._path)
            except (UndertowError, OSError):
                continue
            if status is not None:
                self._usage.record(status)


def find_shares(usages: Mapping[str, JobUsage | None]) -> dict[str, float]:
    """Return each job's share of the device time of all jobs, without jobs that never connected to the arbiter."""
    known = {name: usage.device_s for name, usage in usages.items() if usage is not None}
    total_s = sum(known.values())
    return {name: device_s / total_s if total_s else 0.0 for name, device_s in known.items()}
