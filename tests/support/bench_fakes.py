"""Fakes for a bench without a cluster: groups that answer immediately, with the step times of a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from undertow.observe.report.points import Point
from undertow.progress import Progress
from undertow.tools.lab import link_check
from undertow.tools.lab.bench import series as series_module
from undertow.tools.lab.bench.messages import Assignment, Lap, Ready
from undertow.tools.lab.bench.series import Series, measure
from undertow.tools.lab.network import Counters, Host

HOSTS = 4
COMPUTE_S = 0.5
ENVIRON = {"HOME": "/"}
WARM_UP_STEPS = 7

Speed = Callable[[int], float]  # seconds per step in the lap of this number; 0 is the warm-up


def make_series(**changes: Any) -> Series:
    """Return a series of ResNet-50 under two systems on four hosts, with these changes."""
    given: dict[str, Any] = {
        "model": "resnet50",
        "hosts": HOSTS,
        "bandwidths_gbit": (10.0,),
        "systems": ("ddp", "undertow"),
        "scale": 10.0,
        "rounds": 4,
        "lap_s": 3.0,
    }
    return Series(**given | changes)


def make_hosts(count: int) -> list[Host]:
    return [Host(index, f"host{index}", f"10.0.0.{index + 1}") for index in range(count)]


@dataclass
class Net:
    """Network that counts the groups' bytes: once for the first host, twice for the second, and so on."""

    hosts: Sequence[Host] = field(default_factory=lambda: make_hosts(HOSTS))
    is_shaped: bool = True
    shaped_bits_per_s: list[float | None] = field(default_factory=list)
    checked_bits_per_s: list[float] = field(default_factory=list)
    sent_bytes: int = 12_345

    def shape(self, rate_bits_per_s: float | None) -> None:
        self.shaped_bits_per_s.append(rate_bits_per_s)

    def counters(self) -> list[Counters]:
        return [Counters(self.sent_bytes * (host.index + 1), 0, 0, 0) for host in self.hosts]


@dataclass
class FakeProgress(Progress):
    """Progress that records its calls."""

    said: list[str] = field(default_factory=list)
    expected: float = 0
    done: float = 0

    def say(self, text: str) -> None:
        self.said.append(text)

    def expect(self, units: float) -> None:
        self.expected += units

    def advance(self, units: float = 1) -> None:
        self.done += units


@dataclass
class Script:
    """Speeds of all systems, and a record of what was requested of them."""

    speeds: Mapping[str, Speed]
    ready: Ready = field(default_factory=lambda: Ready(batch=32, gradient_bytes=100_000, compute_s=COMPUTE_S))
    net: Net = field(default_factory=Net)
    progress: FakeProgress = field(default_factory=FakeProgress)
    turns: list[tuple[str, int]] = field(default_factory=list)
    timeouts_s: list[float] = field(default_factory=list)
    alive: list[str] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    failure: tuple[int, BaseException] | None = None  # in which lap, and the error
    step_bytes: int = 1000  # of the first host; twice as many for the second, and so on

    def measure(self, series: Series) -> list[list[Point]]:
        return [result.points for result in measure(series, self.net, environ=ENVIRON, progress=self.progress)]

    @property
    def laps(self) -> list[str]:
        """The system of each lap, without the warm-up."""
        return [name for name, steps in self.turns if steps != WARM_UP_STEPS]


class FakeGroup:
    script: Script

    def __init__(self, network: Net, system: Any, assignment: Assignment, environ: Mapping[str, str]) -> None:
        assert network is self.script.net
        assert environ == ENVIRON
        self.name = assignment.system
        self.warm_up_steps = WARM_UP_STEPS
        assert system.name == self.name
        self.script.assignments.append(assignment)
        self._laps = 0

    def __enter__(self) -> FakeGroup:
        self.script.alive.append(self.name)
        return self

    def __exit__(self, *_: object) -> None:
        self.script.alive.remove(self.name)

    def wait_until_ready(self) -> Ready:
        return self.script.ready

    def run(self, steps: int, *, timeout_s: float) -> list[Lap]:
        script = self.script
        if script.failure and script.failure[0] == len(script.turns):
            raise script.failure[1]
        script.turns.append((self.name, steps))
        script.timeouts_s.append(timeout_s)
        script.net.sent_bytes += script.step_bytes * steps
        step_s = script.speeds[self.name](self._laps)
        self._laps += 1
        ends_s = [step_s * (step + 1) for step in range(steps)]
        return [Lap(ends_s=ends_s, cpu_s=0.25 * steps, sent_bytes=None, digest=1)] * len(script.net.hosts)


def start_script(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Script:
    """Let every group follow a script, and all links pass their check."""
    script = Script(**{"speeds": {"ddp": lambda _: 1.0, "undertow": lambda _: 0.8}, **options})
    monkeypatch.setattr(series_module, "WorkerGroup", type("ScriptedGroup", (FakeGroup,), {"script": script}))
    monkeypatch.setattr(link_check, "check_links", lambda network, rate: script.net.checked_bits_per_s.append(rate))
    return script
