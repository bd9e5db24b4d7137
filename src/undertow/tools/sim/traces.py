"""Trace files of a simulated run, in the format of a real one (`undertow simulate --trace`).

In: a subject, a topology, a schedule.  Out: `rank-N.json` for every virtual worker.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from undertow.observe.trace.chrome import TraceHeader
from undertow.observe.trace.merging import find_files, merge
from undertow.observe.trace.trace_file import TraceFile
from undertow.release import __version__
from undertow.tools.sim.run import Outcome, simulate
from undertow.tools.sim.schedules import Schedule
from undertow.tools.sim.subject import Subject
from undertow.tools.sim.sweep import Noise
from undertow.tools.sim.topology import Topology
from undertow.tools.sim.virtual_trace import VirtualTrace
from undertow.tracing.window import parse_window

# The first step starts with an idle network; the last has no end, because a step ends where the next one begins.
STEPS = 6


def trace_run(folder: Path, subject: Subject, topology: Topology, schedule: Schedule, noise: Noise) -> Outcome:
    traces = [VirtualTrace() for _ in topology.places]
    outcome = simulate(subject.profile, topology, schedule, subject.device, steps=STEPS, pace=noise.pace, traces=traces)
    folder.mkdir(parents=True, exist_ok=True)
    for path in find_files(folder).values():
        path.unlink()
    started = secrets.token_hex(6)
    for rank, trace in enumerate(traces):
        header = TraceHeader(
            rank=rank,
            world_size=len(traces),
            host=f"host{topology.places[rank]}",
            version=__version__,
            source="simulator",
            script=f"{subject.title}, {schedule.name}",
            started=started,
        )
        file = TraceFile(folder, header, parse_window("all"))
        file.take(trace.recorder.stop())
        file.close()
    merge(folder)
    return outcome
