"""The simulator against the lab: its predictions of measured points."""

from __future__ import annotations

import statistics

import pytest

from tests.support.report_samples import timed
from undertow.tools.sim.predictions import Pair, predict_points
from undertow.tools.zoo import find_model

# Measured on 2026-11-16 by `undertow bench --model MODEL --hosts 4 --bandwidth 1,2,4,10,20,40gbit --scale 10 --rounds 2
# --lap 2`, a ladder of docs/lab-log.md: Gbit/s, ddp in ms, undertow in ms.  Points that were noisy are left out, and
# those at which nothing is left of the network.
MEASURED = {
    "resnet50": ((1, 1400.8, 1217.9), (4, 416.1, 319.1), (10, 306.1, 295.9)),
    "vgg19": ((1, 7834.6, 1204.9), (4, 2108.8, 845.3), (10, 1014.0, 844.9)),
    "sockeye": ((2, 872.8, 495.7), (4, 555.3, 369.4)),
    "inception-v3": ((1, 1624.8, 1298.7), (4, 803.4, 751.1)),
}


COMPUTE_MS = {"resnet50": 291, "vgg19": 838, "sockeye": 320, "inception-v3": 741}


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    points = [
        timed(ms / 1e3, model=model, system=system, bandwidth_gbit=gbit, **lab)
        for model, rows in MEASURED.items()
        for lab in [{"scale": 10.0, "batch": find_model(model).batch, "compute_s": COMPUTE_MS[model] / 1e3}]
        for gbit, *both in rows
        for system, ms in zip(("ddp", "undertow"), both, strict=True)
    ]
    return list(predict_points(points))


def test_every_measured_step_is_predicted_within_a_tenth(pairs: list[Pair]) -> None:
    assert len(pairs) == 20
    far = {
        (pair.measured.model, pair.measured.bandwidth_gbit, pair.measured.system): f"{pair.error:+.1%}"
        for pair in pairs
        if not pair.is_close
    }
    assert far == {}


def test_half_of_them_are_predicted_within_a_twentieth(pairs: list[Pair]) -> None:
    assert statistics.median(abs(pair.error) for pair in pairs) < 0.05


def test_gains_over_ddp_are_predicted_within_a_tenth(pairs: list[Pair]) -> None:
    for ddp, ours in zip(pairs[::2], pairs[1::2], strict=True):
        measured = ddp.measured.iteration_s / ours.measured.iteration_s
        assert ddp.predicted_s / ours.predicted_s == pytest.approx(measured, rel=0.1), ours.measured
