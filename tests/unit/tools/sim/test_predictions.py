"""Predictions beside measurements: which points have one, and how close they are in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.bench_fakes import FakeProgress
from tests.support.report_samples import point, results, timed
from undertow.errors import ConfigError
from undertow.plan.profile import LayerProfile, Profile, TensorProfile
from undertow.tools.sim.predictions import TOLERANCE, Pair, can_predict, describe, predict_points
from undertow.tools.sim.schedules import find_schedule
from undertow.tools.sim.subject import find_subject
from undertow.tools.sim.sweep import Setting, run
from undertow.tools.sim.topology import make_topology

LAYER = LayerProfile(name="a", tensors=(TensorProfile(name="a", shape=(250_000,)),), forward_s=0.1, backward_s=0.2)
MINE = replace(find_subject("resnet50"), name="mine", profile=Profile(layers=(LAYER,)))


def test_every_point_is_predicted_in_its_order() -> None:
    compute_s = find_subject("resnet50").profile.compute_s
    measured = results(
        [
            timed(0.4, system="ddp", bandwidth_gbit=4.0, compute_s=compute_s),
            timed(0.3, system="undertow", hosts=2, compute_s=compute_s),
        ]
    )
    progress = FakeProgress()
    pairs = list(predict_points(measured.points, progress=progress))
    assert [pair.measured for pair in pairs] == measured.points
    assert progress.expected == pytest.approx(progress.done)
    assert progress.said == ["resnet50, 4 hosts, 4 Gbit/s: ddp", "resnet50, 2 hosts, 10 Gbit/s: undertow"]
    subject = find_subject("resnet50")
    expected = [
        run(subject, make_topology(hosts, gbit * 1e9), find_schedule(system), Setting()).iteration_s
        for hosts, gbit, system in ((4, 4, "ddp"), (2, 10, "undertow"))
    ]
    assert [pair.predicted_s for pair in pairs] == pytest.approx(expected)


def test_the_batch_is_that_of_the_point() -> None:
    """Of few samples the factors are thin."""
    thick, thin = predict_points(
        [point(model="vgg19", bandwidth_gbit=1.0, batch=batch, compute_s=0.1) for batch in (64, 8)]
    )
    assert thin.predicted_s < 0.9 * thick.predicted_s


def test_the_device_is_as_fast_as_it_was_in_that_run() -> None:
    (pair,) = predict_points([point(hosts=1, compute_s=0.123)])
    assert pair.predicted_s == pytest.approx(0.123)


def test_what_a_message_costs_is_nothing_in_a_slow_motion() -> None:
    """Times are given without the slowdown, so what is not slowed down is that much shorter."""
    usual, slow = predict_points([point(model="mine", slowdown=slowdown) for slowdown in (1.0, 1e9)], MINE)
    assert slow.predicted_s < usual.predicted_s
    small = next(predict_points([point(model="mine", scale=1e9, slowdown=1.0)], MINE))
    assert slow.predicted_s < small.predicted_s < usual.predicted_s


@pytest.mark.parametrize(
    "unknown",
    [
        {"bandwidth_gbit": None},
        {"model": "gpt"},
        {"model": "mine"},
        {"system": "horovod"},
        {"system": "local"},
    ],
)
def test_unshaped_links_and_unknown_models_and_systems_are_left_out(unknown: dict[str, object]) -> None:
    assert can_predict(point())
    assert not can_predict(point(**unknown))
    assert list(predict_points([point(**unknown)])) == []


def test_links_too_slow_to_simulate_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"^1 Mbit/s of a point .* is not possible: give 10mbit to"):
        list(predict_points([point(bandwidth_gbit=0.001)]))


def test_a_model_of_ones_own_is_predicted_by_its_profile() -> None:
    mine = point(model="mine", system="ddp", hosts=1, compute_s=MINE.profile.compute_s)
    zoo = point(system="ddp", hosts=1, compute_s=find_subject("resnet50").profile.compute_s)
    pairs = list(predict_points([mine, zoo, point(model="yours")], MINE))
    assert [pair.measured for pair in pairs] == [mine, zoo]
    assert pairs[0].predicted_s == pytest.approx(0.3)
    assert pairs[1].predicted_s == pytest.approx(find_subject("resnet50").profile.compute_s)


def test_a_tenth_is_close() -> None:
    assert TOLERANCE == 0.1
    errors = [Pair(timed(1.0), predicted_s).error for predicted_s in (0.8, 1.0, 1.25)]
    assert errors == pytest.approx([-0.2, 0.0, 0.25])
    near = [Pair(timed(1.0), predicted_s).is_close for predicted_s in (0.89, 0.901, 1.0, 1.099, 1.11)]
    assert near == [False, True, True, True, False]


def test_words_say_median_largest_and_how_many_are_far() -> None:
    pairs = [Pair(timed(1.0), predicted_s) for predicted_s in (1.02, 0.96, 1.3)]
    assert describe(pairs) == "3 points: median error 4.0 %, largest 30.0 %, 1 beyond 10 %"
