"""Worker with a replayed device, on clocks that only the test moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from undertow.tools.lab.replay.device import Device, Occupancy


class ClockedWorker:
    """Worker with clocks of its own, which only the test moves; its sleeps may end late."""

    def __init__(self, occupancy: Occupancy | None = None, *, lateness_s: Iterable[float] = ()) -> None:
        self.now_s = 1000.0
        self.cpu_s = 5.0
        self.slept_s: list[float] = []
        self._lateness_s: Iterator[float] = iter(lateness_s)
        self.device = Device(
            occupancy=occupancy, clock=lambda: self.now_s, thread_clock=lambda: self.cpu_s, sleep=self._sleep
        )
        self._start_s = self.now_s

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept_s.append(seconds)
        self.now_s += seconds + next(self._lateness_s, 0.0)

    def use_cpu(self, seconds: float) -> None:
        """Let the thread compute: both clocks move."""
        self.now_s += seconds
        self.cpu_s += seconds

    def wait(self, seconds: float) -> None:
        """Let the thread wait, for example for the network: only time passes."""
        self.now_s += seconds

    def wait_until(self, now_s: float) -> None:
        assert now_s >= self.now_s
        self.now_s = now_s

    @property
    def passed_s(self) -> float:
        return self.now_s - self._start_s
