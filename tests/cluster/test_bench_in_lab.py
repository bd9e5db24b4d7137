"""Bytes in the lab: the kernel's count of a link, the library's own, and what the plan predicted agree."""

from __future__ import annotations

import itertools
import os
from functools import partial

import pytest
import torch

from tests.cli.labs import in_lab, needs_lab
from undertow.lab.bench.fleet import Fleet
from undertow.lab.bench.laps import Record, Summary
from undertow.lab.bench.messages import Assignment
from undertow.lab.network import Network
from undertow.lab.replay.device import Device
from undertow.lab.replay.layers import ReplayedEmbedding, ReplayedLinear
from undertow.lab.replay.model import ReplayedModel
from undertow.lab.systems import find_system
from undertow.plan.profile import Kind, TensorProfile
from undertow.plan.scheme import Scheme, count_traffic, list_schemes
from undertow.zoo import find_model

HOSTS = 2
WARM_UP_STEPS, STEPS = 7, 5
# Where each scheme has most to carry.
VGG = Assignment(model="vgg19", system="undertow", scale=100.0, batch=8)
SOCKEYE = Assignment(model="sockeye", system="undertow", scale=30.0, batch=2)


def choose(scheme: Scheme) -> Assignment:
    return SOCKEYE if scheme is Scheme.ROWS else VGG


def count_bytes(network: Network, scheme: Scheme) -> Summary:
    """Per step, when the plan has been made."""
    record = Record()
    environ = {**os.environ, "UNDERTOW_PLAN": scheme.value}
    with Fleet(network, find_system("undertow"), choose(scheme), environ) as fleet:
        fleet.wait_until_ready()
        network.shape(1e9)
        fleet.run(WARM_UP_STEPS, timeout_s=60)
        before = network.counters()
        laps = fleet.run(STEPS, timeout_s=60)
        after = network.counters()
        sent = [now.payload_out - then.payload_out for then, now in zip(before, after, strict=True)]
        record.add(laps, bytes_out=sent)
    return record.summarise()


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
    kind, rows = Kind.OTHER, 0.0
    if isinstance(layer, ReplayedLinear) and parameter.dim() == 2:
        kind, rows = Kind.LINEAR, layer.rows
    elif isinstance(layer, ReplayedEmbedding):
        kind, rows = Kind.EMBEDDING, next(touched)  # type: ignore[call-overload]
    tensor = TensorProfile(name="", shape=tuple(parameter.shape), kind=kind, rows=rows)
    is_open = scheme in (*list_schemes(tensor), Scheme.ALLREDUCE)
    return count_traffic(tensor, scheme if is_open else Scheme.DENSE, HOSTS).bytes_out


def check_bytes(network: Network, scheme: Scheme) -> None:
    summary = count_bytes(network, scheme)
    assert summary.bytes_out == pytest.approx(predict_bytes(choose(scheme), scheme), rel=0.05)
    if scheme is not Scheme.ALLREDUCE:  # that is not ours to count
        assert summary.sent_bytes == pytest.approx(summary.bytes_out, rel=0.03)


@needs_lab
@pytest.mark.parametrize("scheme", Scheme, ids=lambda scheme: scheme.value)
def test_the_kernel_counts_what_the_plan_predicts(scheme: Scheme) -> None:
    in_lab(HOSTS, partial(check_bytes, scheme=scheme))


def test_schemes_send_different_amounts() -> None:
    """Else the test above could not tell them apart."""
    others = [predict_bytes(VGG, scheme) for scheme in (Scheme.FACTORS, Scheme.FACTORS_TO_SHARD, Scheme.DENSE)]
    assert all(larger > 1.5 * smaller for smaller, larger in itertools.pairwise(others))
    assert predict_bytes(SOCKEYE, Scheme.DENSE) > 1.5 * predict_bytes(SOCKEYE, Scheme.ROWS)
