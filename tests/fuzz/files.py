"""Targets: files that users give, from the bytes to what the commands show."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.fuzz.mutation import damage_json, damage_lines
from tests.fuzz.target import Target
from tests.unit.report_samples import point
from tests.unit.timeline_samples import Job, make_trace, to_lines
from undertow.cli.report import describe
from undertow.core.decoding import Decoder, Format
from undertow.errors import Garbled
from undertow.lab import carried
from undertow.lab.bench.messages import Assignment, Lap, Order, Ready
from undertow.launch.job_file import read_jobs
from undertow.plan.cluster import Cluster
from undertow.plan.measured import Measured, read_measured
from undertow.plan.plan import Choice, Plan, check_fits, read_plan
from undertow.plan.planner import make_plan
from undertow.plan.profile import Kind, LayerProfile, Profile, TensorProfile
from undertow.plan.scheme import Scheme
from undertow.report.points import read_results
from undertow.report.step_page import make_step_page
from undertow.sim.cluster_file import read_topology
from undertow.sim.subject import take_measured
from undertow.timeline.analysis import study
from undertow.timeline.reading import read_trace
from undertow.trace.merging import merge

PLAN = Plan(
    policy="auto",
    workers=2,
    choices=(
        Choice(
            tensor="fc.weight",
            shape=(64, 32),
            scheme=Scheme.DENSE,
            bytes_out=8192.0,
            push_bytes=4096.0,
            alone_s=0.001,
            reason="a reason",
        ),
    ),
    step_s=0.03,
    compute_s=0.02,
    alone={"dense": 0.03},
)
TENSOR = TensorProfile(name="fc.weight", shape=(64, 32), kind=Kind.LINEAR, rows=16.0)
PROFILE = Measured(
    profile=Profile(layers=(LayerProfile(name="fc", tensors=(TENSOR,), forward_s=0.01, backward_s=0.02),)),
    flops_per_s=1e10,
    shard_flops_per_s=1e9,
    add_bytes_per_s=1e9,
    has_gates=True,
)
# Thousands of files per second: not on a disk, where there is something else.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
CLUSTER = b"""{"latency_us": 100, "racks": {"left": "20gbit", "right": "20gbit"}, "hosts": [
 {"count": 2, "bandwidth": "10gbit", "rack": "left"},
 {"count": 2, "bandwidth": "1gbit", "rack": "right", "slowdown": 1.5, "workers": 2}]}"""
JOB_FILE = b"""script = "train.py"
args = ["--epochs", "3"]
n = 2
weight = 2.0
master_port = 29500
name = "a job"
env = {OMP_NUM_THREADS = "1"}
"""
MESSAGES = [
    Assignment(model="vgg19", system="undertow", scale=1.0, batch=None),
    Order(3),
    Ready(batch=4, gradient_bytes=100, compute_s=None),
    Lap(ends_s=[1.0, 2.0], cpu_s=0.5, sent_bytes=100, digest=77),
]
CARRIED = [
    b'{"kind": "LabError", "text": "no link", "system": [], "story": "where"}',
    b'{"kind": "", "text": "x", "system": [2, "No such file", "path"], "story": "where"}',
]


class Files:
    """A folder of its own, for one target."""

    def __init__(self) -> None:
        self._made = tempfile.TemporaryDirectory(prefix="undertow-fuzz-", dir=MEMORY)
        self.folder = Path(self._made.name)

    def reads(self, name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        path = self.folder / name

        def run(data: bytes) -> object:
            path.write_bytes(data)
            return read(path)

        return run

    def close(self) -> None:
        self._made.cleanup()


def run_plan(path: Path) -> None:
    plan = read_plan(path)
    plan.to_json()
    check_fits(plan, {"fc.weight": (64, 32)})


def run_profile(path: Path) -> None:
    measured = read_measured(path)
    subject = take_measured(path.name, measured)
    cluster = Cluster(workers=4, bytes_per_s=1e9, **dataclasses.asdict(subject.device))
    make_plan(subject.profile, cluster, has_gates=subject.has_gates).to_json()


def run_trace(path: Path) -> None:
    trace = read_trace(path.parent)
    if trace is not None:
        found = study(trace, None)
        make_step_page(found)
        describe(found.analysis)
        found.analysis.to_json()
    merge(path.parent)


def run_bench_message(data: bytes) -> None:
    for kind in (Assignment, Order, Ready, Lap):
        decoder: Decoder[object] = Decoder(kind, format=Format.JSON)
        try:
            decoder.decode(data)
        except Garbled:
            continue


def run_carried(data: bytes) -> None:
    with tempfile.TemporaryFile(dir=MEMORY) as file:
        file.write(data)
        file.flush()
        try:
            carried.raise_carried(file.fileno())
        except OSError:
            return


def run_jobs(path: Path) -> None:
    (path.parent / "train.py").touch()
    for job in read_jobs([path], {}):
        assert all(isinstance(word, str) and "\0" not in word for word in job.command)
        job.make_environment({}, path)


def make_targets() -> list[Target]:
    files = Files()
    trace = to_lines(make_trace(Job(ranks=1, steps=2, layers=2, has_plan=True))[0]).encode()
    results = {"format": 1, "machine": {}, "date": "", "versions": {}, "command": "", "points": [point()], "notes": []}
    json = msgspec.json.encode
    return [
        Target(
            name="plan file",
            samples=[json(PLAN)],
            run=files.reads("plan.json", run_plan),
            mutate=damage_json,
        ),
        Target(
            name="profile file",
            samples=[json(PROFILE)],
            run=files.reads("profile.json", run_profile),
            mutate=damage_json,
            cost=4,
        ),
        Target(
            name="results file",
            samples=[json(results)],
            run=files.reads("results.json", read_results),
            mutate=damage_json,
        ),
        Target(
            name="cluster file",
            samples=[CLUSTER],
            run=files.reads("cluster.json", read_topology),
            mutate=damage_json,
        ),
        Target(name="job file", samples=[JOB_FILE], run=files.reads("job.toml", run_jobs)),
        Target(
            name="trace file",
            samples=[trace],
            run=files.reads("rank-0.json", run_trace),
            mutate=damage_lines,
            cost=16,
        ),
        Target(
            name="bench message", samples=[json(one) for one in MESSAGES], run=run_bench_message, mutate=damage_json
        ),
        Target(
            name="carried error",
            samples=CARRIED,
            run=run_carried,
            mutate=damage_json,
            finish=files.close,
        ),
    ]
