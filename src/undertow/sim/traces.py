"""`undertow simulate --trace`: a simulated run as files that look like those of a real one.

In: what is trained, where, under which schedule.  Out: `rank-N.json` for every virtual worker.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from undertow import __version__
from undertow.sim.noise import Noise
from undertow.sim.recorded import Diary
from undertow.sim.run import Outcome, simulate
from undertow.sim.schedules import Schedule
from undertow.sim.subject import Subject
from undertow.sim.topology import Topology
from undertow.trace.chrome import About
from undertow.trace.file import TraceFile
from undertow.trace.merging import find_files, merge
from undertow.trace.window import parse_window

# The first starts with nothing on its way, the last one's end is not seen: a step is told by the next one's beginning.
STEPS = 6


def trace_run(folder: Path, subject: Subject, topology: Topology, schedule: Schedule, noise: Noise) -> Outcome:
    diaries = [Diary() for _ in topology.places]
    outcome = simulate(
        subject.profile, topology, schedule, subject.device, steps=STEPS, pace=noise.pace, diaries=diaries
    )
    folder.mkdir(parents=True, exist_ok=True)
    for path in find_files(folder).values():
        path.unlink()
    started = secrets.token_hex(6)
    for rank, diary in enumerate(diaries):
        about = About(
            rank=rank,
            world_size=len(diaries),
            host=f"host{topology.places[rank]}",
            version=__version__,
            source="simulator",
            script=f"{subject.title}, {schedule.name}",
            started=started,
        )
        file = TraceFile(folder, about, parse_window("all"))
        file.take(diary.recorder.stop())
        file.close()
    merge(folder)
    return outcome
