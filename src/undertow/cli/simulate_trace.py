"""`undertow simulate --trace`: some simulated steps as files that look like those of a real run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from undertow.errors import ConfigError
from undertow.launch.speech import notify
from undertow.sim.noise import Noise
from undertow.sim.schedules import Schedule
from undertow.sim.subject import Subject
from undertow.sim.topology import Topology
from undertow.sim.traces import trace_run


def check_traceable(topologies: Sequence[Topology], share: str | None) -> None:
    if share is not None:
        raise ConfigError("--trace records one job: leave --share")
    if len(topologies) != 1:
        raise ConfigError("--trace records one cluster: give one number for --hosts and one for --bandwidth")


def write_trace(folder: Path, subject: Subject, topology: Topology, schedule: Schedule, noise: Noise) -> None:
    try:
        trace_run(folder, subject, topology, schedule, noise)
    except OSError as error:
        raise ConfigError(f"the trace cannot be written to {folder}: {error.strerror}") from None
    notify(
        f"the trace of {schedule.name} is {folder / 'trace.json'}, for ui.perfetto.dev; "
        f"read it with: undertow report {shlex.quote(str(folder))}"
    )
