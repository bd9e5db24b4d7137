"""What the arbiter has seen of some jobs, kept for when they are gone.

In: the arbiter's `Status`, again and again.  Out: of each job its last figures, and of each device what it was worth.
The arbiter forgets a job when its workers leave, so its figures are collected while it lives.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from undertow.crossover.messages import DeviceStatus, JobStatus, Status
from undertow.errors import UndertowError
from undertow.launch.guard import find_descendants

LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Figures:
    """Of one job, on all devices of this host."""

    steps: int
    device_s: float
    waited_s: float  # for its turn
    network_s: float


class Tally:
    """Of the jobs with these launchers (their pids); `see` may be called from another thread than the rest."""

    def __init__(self, find_below: Callable[[int], list[int]] = lambda pid: find_descendants([pid])) -> None:
        self.launchers: list[int] = []
        self._find_below = find_below
        self._owners: dict[str, int | None] = {}  # launcher of each identity; None: a stranger
        self._seen: dict[tuple[int, str], JobStatus] = {}
        self._devices: dict[str, DeviceStatus] = {}

    def see(self, status: Status) -> None:
        for device in status.devices:
            owners = {job.job: self._find_owner(job) for job in device.jobs}
            for job in device.jobs:
                owner = owners[job.job]
                if owner is not None:
                    self._seen[owner, device.device] = job
            if any(owners.values()) and self._says_more(device):
                self._devices[device.device] = device

    def find_figures(self, launcher: int) -> Figures | None:
        """None if the arbiter has not seen the job."""
        seen = [job for (owner, _), job in self._seen.items() if owner == launcher]
        if not seen:
            return None
        return Figures(
            steps=max(job.steps for job in seen),
            device_s=sum(job.device_s for job in seen),
            waited_s=statistics.fmean(job.waited_s for job in seen),
            network_s=statistics.fmean(job.network_s for job in seen),
        )

    @property
    def devices(self) -> list[DeviceStatus]:
        """Each as it was when most jobs were there, and last of those."""
        return list(self._devices.values())

    def _says_more(self, device: DeviceStatus) -> bool:
        before = self._devices.get(device.device)
        return before is None or _weigh(device) >= _weigh(before)

    def _find_owner(self, job: JobStatus) -> int | None:
        if job.job not in self._owners:
            pids = set(job.pids)
            below = (pid for pid in self.launchers if pids & set(self._find_below(pid)))
            self._owners[job.job] = next(below, None)
        return self._owners[job.job]


def _weigh(device: DeviceStatus) -> tuple[int, int]:
    """Several jobs that are known tell the most; more of them tell more."""
    jobs = len(device.jobs)
    return (jobs if jobs > 1 and device.gain is not None else 0), jobs


class Lookout:
    """The thread that looks at the arbiter twice a second, and never complains: jobs go on without it."""

    def __init__(self, ask: Callable[[], Status | None], tally: Tally) -> None:
        self._ask, self._tally = ask, tally
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="undertow-lookout", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(LOOK_EVERY_S):
            try:
                status = self._ask()
            except (UndertowError, OSError):
                continue
            if status is not None:
                self._tally.see(status)


def find_shares(figures: Mapping[str, Figures | None]) -> dict[str, float]:
    """Each job's part of the device time of all; without those that nobody has seen."""
    known = {name: one.device_s for name, one in figures.items() if one is not None}
    total_s = sum(known.values())
    return {name: device_s / total_s if total_s else 0.0 for name, device_s in known.items()}
