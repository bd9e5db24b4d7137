"""Reports and job states for tests of the live view, and a reader of its metrics."""

from __future__ import annotations

import re
from typing import Any

from undertow.observe.live.job_state import JobSnapshot, JobState
from undertow.observe.meter.status_report import Activity, StatusReport

FIGURES: dict[str, Any] = {
    "uptime_s": 150.0,
    "state": Activity.COMPUTING,
    "steps": 1240,
    "steps_per_s": 8.31,
    "waited_s": 13.5,
    "wait_share": 0.09,
    "waits_for": "conv1.weight",
    "wait_ms_per_step": 10.9,
    "layer": "fc6",
    "layer_ms_per_step": 31.2,
    "bytes_out": 14_000_000_000,
    "bytes_in": 13_000_000_000,
    "out_bytes_per_s": 93e6,
    "in_bytes_per_s": 92e6,
    "link_bytes_per_s": 118e6,
}


def make_report(rank: int = 0, sequence: int = 1, **figures: Any) -> StatusReport:
    return StatusReport(rank=rank, sequence=sequence, **{"host": f"node{rank}", **FIGURES, **figures})


def make_job_state(ranks: int = 2, **figures: Any) -> JobState:
    """Began at 0, and has heard of everybody at 100."""
    job = JobState("train.py", now_s=0.0)
    job.expect({rank: f"node{rank}" for rank in range(ranks)}, ranks)
    for rank in range(ranks):
        job.add_report(make_report(rank, **figures), 100.0)
    return job


def make_snapshot(ranks: int = 2, **figures: Any) -> JobSnapshot:
    return make_job_state(ranks, **figures).take_snapshot(101.0)


# The grammar of the text format, version 0.0.4
_SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)')


def read_metrics(text: str) -> dict[str, float]:
    """Every sample by its name and labels, if the text keeps to the grammar."""
    samples = {}
    helped: set[str] = set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped.add(line.split()[2])
        elif not line.startswith("# TYPE "):
            match = _SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] in helped
            samples[f"{match[1]}{{{match[2]}}}"] = float(match[3])
    return samples
