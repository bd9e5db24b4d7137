"""What sharing is worth: T = max(sum c, max(c + m), sum m)."""

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
def test_the_longest_of_device_job_and_network_is_the_step(loads: list[tuple[float, float]], step_s: float) -> None:
    assert predict_step_s([Load(*load) for load in loads]) == step_s


def test_the_gain_is_over_one_after_the_other() -> None:
    assert predict_gain([Load(1.0, 1.0), Load(1.0, 1.0)]) == 2.0
    assert predict_gain([Load(3.0, 1.0)]) == 1.0
    assert predict_gain([Load(0.0, 0.0)]) == 1.0


def test_jobs_that_gain_are_told_nothing() -> None:
    assert explain_no_gain(["a", "b"], [Load(1.0, 1.0), Load(1.0, 1.0)]) is None
    assert explain_no_gain(["a"], [Load(1.0, 0.0)]) is None
    exposed_s = 2 * (WORTH - 1.0)
    assert explain_no_gain(["a", "b"], [Load(1.0, exposed_s), Load(1.0, 0.0)]) is None


def test_jobs_that_hardly_wait_are_told_so() -> None:
    assert explain_no_gain(["a", "b"], [Load(0.1, 0.001), Load(0.2, 0.0)]) == (
        "a and b gain nothing from sharing a device: they hardly wait for the network (1 ms in steps of 300 ms). "
        "They would finish as soon one after the other"
    )


def test_jobs_that_only_wait_are_told_that_the_network_is_full() -> None:
    assert explain_no_gain(["a", "b"], [Load(0.001, 0.1), Load(0.001, 0.2)]) == (
        "a and b gain nothing from sharing a device: the network is always busy (they wait 300 ms for it in one step "
        "of each). They would finish as soon one after the other"
    )
