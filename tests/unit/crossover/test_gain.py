"""Predicted gain of sharing: T = max(sum c, max(c + m), sum m)."""

from __future__ import annotations

import pytest

from undertow.crossover.gain import WORTH, Load, explain_no_gain, predict_gain, predict_step_s


@pytest.mark.parametrize(
    ("loads", "step_s"),
    [
        ([(3.0, 1.0), (3.0, 1.0)], 6.0),  # the device is the limit
        ([(1.0, 4.0), (1.0, 1.0)], 5.0),  # the longest job is
        ([(1.0, 4.0), (1.0, 4.0)], 8.0),  # the network is
        ([(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)], 3.0),
        ([(2.0, 1.0)], 3.0),
    ],
)
def test_a_step_takes_as_long_as_device_longest_job_or_network(loads: list[tuple[float, float]], step_s: float) -> None:
    assert predict_step_s([Load(*load) for load in loads]) == step_s


def test_the_gain_is_relative_to_one_job_after_the_other() -> None:
    assert predict_gain([Load(1.0, 1.0), Load(1.0, 1.0)]) == 2.0
    assert predict_gain([Load(3.0, 1.0)]) == 1.0
    assert predict_gain([Load(0.0, 0.0)]) == 1.0


def test_jobs_that_gain_get_no_explanation() -> None:
    assert explain_no_gain(["a", "b"], [Load(1.0, 1.0), Load(1.0, 1.0)]) is None
    assert explain_no_gain(["a"], [Load(1.0, 0.0)]) is None
    exposed_s = 2 * (WORTH - 1.0)
    assert explain_no_gain(["a", "b"], [Load(1.0, exposed_s), Load(1.0, 0.0)]) is None


def test_jobs_that_hardly_wait_get_an_explanation() -> None:
    assert explain_no_gain(["a", "b"], [Load(0.1, 0.001), Load(0.2, 0.0)]) == (
        "a and b gain nothing from sharing a device: they hardly wait for the network (1 ms in steps of 300 ms). "
        "They would finish as soon one after the other"
    )


def test_jobs_that_mostly_wait_learn_that_the_network_is_busy() -> None:
    assert explain_no_gain(["a", "b"], [Load(0.001, 0.1), Load(0.001, 0.2)]) == (
        "a and b gain nothing from sharing a device: the network is always busy (they wait 300 ms for it in one step "
        "of each). They would finish as soon one after the other"
    )
