"""Targets: files that users give, from the bytes to what the commands show."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from rich.console import Console, RenderableType

from tests.fuzz.mutation import damage_json, damage_lines
from tests.fuzz.target import Target
from tests.support.report_samples import point, results, sweep
from tests.support.timeline_samples import Job, make_trace, to_lines
from undertow.bounds import SIMULATED
from undertow.cli.report import describe
from undertow.cli.simulate import make_pair_table
from undertow.error_transfer import read_error
from undertow.errors import Garbled, LabError
from undertow.launch.job_file import read_jobs
from undertow.observe.report.compare import compare, list_differences, make_comparison_table
from undertow.observe.report.page import make_page
from undertow.observe.report.points import Point, read_results
from undertow.observe.report.step_page import make_step_page
from undertow.observe.report.table import make_table
from undertow.observe.timeline.analysis import study
from undertow.observe.timeline.trace_reader import read_trace
from undertow.observe.trace.merging import merge
from undertow.plan.cluster import Cluster
from undertow.plan.measured import Measured, read_measured
from undertow.plan.plan import Choice, Plan, check_fits, read_plan
from undertow.plan.planner import make_plan
from undertow.plan.profile import LayerKind, LayerProfile, Profile, TensorProfile
from undertow.plan.scheme import Scheme
from undertow.tools.lab.bench.messages import Assignment, Lap, Order, Ready
from undertow.tools.lab.bench.worker_group import WorkerGroup
from undertow.tools.lab.systems import find_system
from undertow.tools.sim.predictions import can_predict, predict_points
from undertow.tools.sim.subject import take_measured
from undertow.tools.sim.sweep import Setting, make_points
from undertow.tools.sim.topology import Topology, read_topology

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
TENSOR = TensorProfile(name="fc.weight", shape=(64, 32), kind=LayerKind.LINEAR, rows=16.0)
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
# What is simulated here takes milliseconds; on slower links, with more workers or more bytes it takes up to hours.
MOST_WORKERS, LEAST_BITS_PER_S, MOST_BYTES = 6, 2e8, 1e8
RESULTS = results(sweep((1.0, 10.0, None), model="alexnet", hosts=2), versions={"undertow": "0.1.0"})
MESSAGES: list[Any] = [
    Assignment(model="vgg19", system="undertow", scale=1.0, batch=None),
    Order(3),
    Ready(batch=4, gradient_bytes=100, compute_s=None),
    Lap(ends_s=[1.0, 2.0], cpu_s=0.5, sent_bytes=100, digest=77),
]
CARRIED = [
    b'{"kind": "LabError", "message": "no link", "facts": {}, "system": [], "story": "where"}',
    b'{"kind": "PeerLost", "message": "", "facts": {"rank": 2, "ranks": [2], "host": "b"}, "system": [], "story": ""}',
    b'{"kind": "", "message": "x", "facts": {}, "system": [2, "No such file", "path"], "story": "where"}',
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
    if sum(tensor.size_bytes for tensor in subject.profile.tensors) <= MOST_BYTES:
        _show(make_pair_table(list(predict_points([point(model=subject.name, hosts=2)], subject))))


def run_results(path: Path) -> None:
    """As `undertow bench --compare` shows them, beside others and beside themselves."""
    found = read_results(path)
    if found.points:
        _show(make_table(found.points))
    for before, after in ((RESULTS, found), (found, RESULTS), (found, found)):
        _show(make_comparison_table(compare(before, after), notes=list_differences(before, after)))


def run_results_page(path: Path) -> None:
    make_page(read_results(path)).encode()


def run_results_prediction(path: Path) -> None:
    """As `undertow simulate --against` predicts them."""
    known = [one for one in read_results(path).points if can_predict(one) and _is_soon_predicted(one)]
    pairs = list(predict_points(known[:3]))
    if pairs:
        _show(make_pair_table(pairs))


def _is_soon_predicted(one: Point) -> bool:
    assert one.bandwidth_gbit is not None
    is_refused = one.bandwidth_gbit < SIMULATED.least / 1e9
    return (
        one.model == "alexnet"
        and one.hosts <= MOST_WORKERS
        and (is_refused or one.bandwidth_gbit * 1e9 >= LEAST_BITS_PER_S)
    )


def run_cluster(path: Path) -> None:
    topology = read_topology(path)
    if _is_soon_simulated(topology):
        subject = take_measured("a.json", PROFILE)
        points = list(make_points(subject, topology, ["undertow"], setting=Setting(steps=1)))
        _show(make_table(points))


def _is_soon_simulated(topology: Topology) -> bool:
    links = [*(host.bandwidth_bits_per_s for host in topology.hosts), *topology.uplinks_bits_per_s.values()]
    return len(topology.places) <= MOST_WORKERS and min(links) >= LEAST_BITS_PER_S


def _show(table: RenderableType) -> None:
    Console(file=io.StringIO(), width=100).print(table)


def run_trace(path: Path) -> None:
    _report(path.parent)


def run_traces(folder: Path, data: bytes) -> None:
    """Of all ranks: the first byte says whose trace the others are, and those of the other ranks are whole."""
    damaged = data[0] % len(TRACES) if data else 0
    for rank, whole in TRACES.items():
        (folder / f"rank-{rank}.json").write_bytes(data[1:] if rank == damaged else whole)
    _report(folder)


def mutate_traces(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    sample = rng.choice(samples)
    return sample[:1] + damage_lines(rng, [sample[1:]])


def _report(folder: Path) -> None:
    """As `undertow report` does."""
    trace = read_trace(folder)
    if trace is not None:
        found = study(trace, None)
        make_step_page(found).encode()
        describe(found.analysis)
        found.analysis.to_json()
    merge(folder)


def run_bench_message(data: bytes) -> None:
    """To the bench and to a worker."""
    from undertow.tools.lab.bench.worker import _assignments, _orders

    nothing: Any = SimpleNamespace(hosts=[], warm_up_steps=0, host=SimpleNamespace(name="a"))
    for kind in (Ready, Lap):
        try:
            WorkerGroup(nothing, nothing, MESSAGES[0], {})._decode(nothing, data, kind)
        except LabError:
            continue
    with contextlib.suppress(Garbled):
        _orders.decode(data)
    with contextlib.suppress(Garbled):
        find_system(_assignments.decode(data).system)


def run_carried(data: bytes) -> None:
    with tempfile.TemporaryFile(dir=MEMORY) as file:
        file.write(data)
        file.flush()
        read_error(file.fileno())


def run_jobs(path: Path) -> None:
    (path.parent / "train.py").touch()
    for job in read_jobs([path], {}):
        assert all(isinstance(word, str) and "\0" not in word for word in job.command)
        job.make_environment({}, path)


def _make_traces(**options: Any) -> dict[int, bytes]:
    traces = make_trace(Job(steps=2, layers=2, has_plan=True, **options))
    return {rank: to_lines(events).encode() for rank, events in traces.items()}


TRACES = _make_traces(ranks=3, slowness={1: 1.5})


def make_targets() -> list[Target]:
    files, together = Files(), Files()
    json = msgspec.json.encode
    measured = json({"format": 1, **msgspec.structs.asdict(RESULTS)})
    systems = [point(model="alexnet", hosts=2, system=system) for system in ("undertow", "ddp", "ps-whole")]
    predicted = json({"format": 1, **msgspec.structs.asdict(results(systems))})
    return [
        Target(
            name="plan file",
            decodes=("plan/plan.py", "plan/documents.py"),
            samples=[json(PLAN)],
            run=files.reads("plan.json", run_plan),
            mutate=damage_json,
        ),
        Target(
            name="profile file",
            decodes=("plan/measured.py", "plan/documents.py"),
            samples=[json(PROFILE)],
            run=files.reads("profile.json", run_profile),
            mutate=damage_json,
            cost=16,
        ),
        Target(
            name="results file",
            decodes=("observe/report/points.py",),
            samples=[measured],
            run=files.reads("results.json", run_results),
            mutate=damage_json,
            cost=64,
        ),
        Target(
            name="results page",
            decodes=("observe/report/points.py",),
            samples=[measured],
            run=files.reads("results.json", run_results_page),
            mutate=damage_json,
            cost=256,
        ),
        Target(
            name="results and predictions",
            decodes=("observe/report/points.py",),
            samples=[predicted],
            run=files.reads("results.json", run_results_prediction),
            mutate=damage_json,
            cost=64,
        ),
        Target(
            name="cluster file",
            decodes=("tools/sim/topology.py",),
            samples=[CLUSTER],
            run=files.reads("cluster.json", run_cluster),
            mutate=damage_json,
            cost=4,
        ),
        Target(
            name="job file",
            decodes=("launch/job_file.py",),
            samples=[JOB_FILE],
            run=files.reads("job.toml", run_jobs),
        ),
        Target(
            name="trace file",
            decodes=(
                "plan/plan.py",
                "observe/timeline/trace_line.py",
                "observe/timeline/trace_reader.py",
                "observe/trace/merging.py",
            ),
            samples=list(_make_traces(ranks=1).values()),
            run=files.reads("rank-0.json", run_trace),
            mutate=damage_lines,
            cost=16,
        ),
        Target(
            name="traces of all ranks",
            decodes=(
                "plan/plan.py",
                "observe/timeline/trace_line.py",
                "observe/timeline/trace_reader.py",
                "observe/trace/merging.py",
            ),
            samples=[bytes([rank]) + trace for rank, trace in TRACES.items()],
            run=lambda data: run_traces(together.folder, data),
            mutate=mutate_traces,
            cost=32,
            finish=together.close,
        ),
        Target(
            name="bench message",
            decodes=("tools/lab/bench/worker_group.py", "tools/lab/bench/worker.py"),
            samples=[json(one) for one in MESSAGES],
            run=run_bench_message,
            mutate=damage_json,
        ),
        Target(
            name="carried error",
            decodes=("error_transfer.py",),
            samples=CARRIED,
            run=run_carried,
            mutate=damage_json,
            finish=files.close,
        ),
    ]
