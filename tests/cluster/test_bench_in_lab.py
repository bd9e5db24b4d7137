"""Bytes in the lab: the kernel's count of a link, the library's own, and what the plan predicted agree."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean

import msgspec
import pytest
import torch

from tests.support.labs import in_lab, needs_lab
from tests.support.scheme_worker import Job
from undertow.plan.profile import LayerKind, TensorProfile
from undertow.plan.scheme import Scheme, count_traffic, list_schemes
from undertow.tools.lab.bench.messages import Assignment, Lap
from undertow.tools.lab.network import Network
from undertow.tools.lab.replay.device import Device
from undertow.tools.lab.replay.layers import ReplayedEmbedding, ReplayedLinear
from undertow.tools.lab.replay.model import ReplayedModel
from undertow.tools.lab.systems import find_system
from undertow.tools.lab.worker_environments import open_rendezvous
from undertow.tools.zoo import find_model

HOSTS = 2
WARM_UP_STEPS, STEPS = 7, 5
# Where each scheme has most to carry; on quick devices, which send the same.
VGG = Assignment(model="vgg19", system="undertow", scale=100.0, slowdown=0.01, batch=128)
SOCKEYE = Assignment(model="sockeye", system="undertow", scale=30.0, slowdown=0.1, batch=2)


def choose(scheme: Scheme) -> Assignment:
    return SOCKEYE if scheme is Scheme.ROWS else VGG


class Counted(msgspec.Struct):
    """Per step and host, when the plan has been made."""

    bytes_out: float  # by the kernel
    sent_bytes: float  # by the library


def count_bytes(network: Network, path: Path) -> None:
    """Every scheme after the other, by the same workers."""
    counted: dict[str, Counted] = {}
    network.shape(1e9)
    with open_workers(network) as workers:
        for scheme in Scheme:
            job = Job(assignment=choose(scheme), plan=scheme.value, warm_up_steps=WARM_UP_STEPS, steps=STEPS)
            tell(workers, msgspec.json.encode(job))
            before = network.counters()
            laps = [msgspec.json.decode(line, type=Lap) for line in tell(workers, b"")]
            after = network.counters()
            assert laps[0].digest == laps[1].digest, f"{scheme}: the replicas differ"
            sent = [now.payload_out - then.payload_out for then, now in zip(before, after, strict=True)]
            counted[scheme.value] = Counted(fmean(sent) / STEPS, fmean(lap.sent_bytes or 0 for lap in laps) / STEPS)
    path.write_bytes(msgspec.json.encode(counted))


@contextmanager
def open_workers(network: Network) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
    """One on every host."""
    environ = {**os.environ, **find_system("undertow").variables(scale=VGG.scale)}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    workers = []
    with open_rendezvous(network, environ) as environments:
        for host, environment in zip(network.hosts, environments, strict=True):
            command = [sys.executable, "-m", "tests.support.scheme_worker"]
            with host.entered():
                workers.append(
                    subprocess.Popen(command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                )
        yield workers
        for worker in workers:
            worker.communicate(timeout=60)


def tell(workers: Sequence[subprocess.Popen[bytes]], line: bytes) -> list[bytes]:
    """To everybody; returns what they answer."""
    for worker in workers:
        assert worker.stdin
        worker.stdin.write(line + b"\n")
        worker.stdin.flush()
    answers = [worker.stdout.readline() for worker in workers if worker.stdout]
    assert all(answers), "a worker has ended"
    return answers


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Scheme, Counted]:
    path = tmp_path_factory.mktemp("counted") / "bytes.json"
    in_lab(HOSTS, partial(count_bytes, path=path))
    return msgspec.json.decode(path.read_bytes(), type=dict[Scheme, Counted])


def predict_bytes(assignment: Assignment, scheme: Scheme) -> float:
    """What a host sends in one step, by the formulas that plans are made with."""
    replayed = find_model(assignment.model)
    model = ReplayedModel(replayed, device=Device(), scale=assignment.scale, batch=assignment.batch)
    tokens = [
        [batch.unique().numel() for batch in model.make_batch(rank, step)]
        for rank in range(HOSTS)
        for step in range(WARM_UP_STEPS, WARM_UP_STEPS + STEPS)
    ]
    touched = iter([sum(counts) / len(counts) for counts in zip(*tokens, strict=True)])
    total = 0.0
    for layer in model.layers.values():
        for parameter in layer.parameters():
            total += _predict(layer, parameter, touched, scheme)
    return total


def _predict(layer: torch.nn.Module, parameter: torch.Tensor, touched: object, scheme: Scheme) -> float:
    kind, rows = LayerKind.OTHER, 0.0
    if isinstance(layer, ReplayedLinear) and parameter.dim() == 2:
        kind, rows = LayerKind.LINEAR, layer.rows
    elif isinstance(layer, ReplayedEmbedding):
        kind, rows = LayerKind.EMBEDDING, next(touched)  # type: ignore[call-overload]
    tensor = TensorProfile(name="", shape=tuple(parameter.shape), kind=kind, rows=rows)
    is_open = scheme in (*list_schemes(tensor), Scheme.ALLREDUCE)
    return count_traffic(tensor, scheme if is_open else Scheme.DENSE, workers=HOSTS, servers=HOSTS).bytes_out


@needs_lab
@pytest.mark.parametrize("scheme", Scheme, ids=lambda scheme: scheme.value)
def test_the_kernel_counts_what_the_plan_predicts(counted: Mapping[Scheme, Counted], scheme: Scheme) -> None:
    found = counted[scheme]
    assert found.bytes_out == pytest.approx(predict_bytes(choose(scheme), scheme), rel=0.02)
    if scheme is not Scheme.ALLREDUCE:  # that is not ours to count
        assert found.sent_bytes == pytest.approx(found.bytes_out, rel=0.03)


def test_schemes_send_different_amounts() -> None:
    """Else the test above could not tell them apart."""
    others = [predict_bytes(VGG, scheme) for scheme in (Scheme.FACTORS, Scheme.FACTORS_TO_SHARD, Scheme.DENSE)]
    assert all(larger > 1.5 * smaller for smaller, larger in itertools.pairwise(others))
    assert predict_bytes(SOCKEYE, Scheme.DENSE) > 1.5 * predict_bytes(SOCKEYE, Scheme.ROWS)
