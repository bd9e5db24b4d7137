"""Figures from laps of several jobs: the common interval, fractions of steps, gains, and loads."""

from __future__ import annotations

import pytest

from undertow.crossover.gain import predict_gain
from undertow.errors import LabError
from undertow.tools.lab.bench.messages import Lap
from undertow.tools.lab.sharing.bench import correct_rate, estimate_rate, is_close
from undertow.tools.lab.sharing.figures import (
    FINISH,
    SETTLE,
    MeasuredLap,
    Window,
    choose_steps,
    count_steps,
    find_gain,
    find_gains,
    find_middle,
    find_paces,
    find_window,
    make_load,
    measure_laps,
)


def lap(*ends_s: float, cpu_s: float = 0.0) -> Lap:
    return Lap(ends_s=list(ends_s), cpu_s=cpu_s, sent_bytes=None, digest=1)


def settled(*ends_s: float) -> list[float]:
    """Return these ends after some steps in which jobs settle."""
    return [ends_s[0] - 0.01 * number for number in range(SETTLE, 0, -1)] + list(ends_s)


def measured(*steps_s: float) -> MeasuredLap:
    return MeasuredLap(steps_s=steps_s, cpu=0.0)


def test_the_window_is_where_all_train() -> None:
    early, late = settled(1.0, 2.0, 9.0, 9.5), settled(1.5, 4.0, 7.0, 11.0)
    assert find_window([early, late]) == Window(1.5, 7.0)


def test_jobs_settle_first_and_are_no_company_in_their_last_step() -> None:
    assert find_window([settled(4.0, 5.0, 6.0), settled(4.5, 5.5, 6.5, 7.5)]) == Window(4.5, 5.0)
    assert find_window([settled(1.0, 2.0, 3.0)]) == Window(1.0, 3.0)


def test_jobs_that_never_met_are_an_error() -> None:
    with pytest.raises(LabError, match=r"did not train at the same time.* longer --lap"):
        find_window([settled(4.0, 5.0, 6.0), settled(6.0, 7.0, 8.0)])
    with pytest.raises(LabError, match="did not train at the same time"):
        find_window([[1.0, 2.0], [1.0, 2.0]])


@pytest.mark.parametrize(
    ("start_s", "end_s", "steps"),
    [(10.0, 16.0, 3.0), (10.0, 12.0, 1.0), (11.0, 13.0, 1.0), (12.0, 13.0, 0.5), (11.0, 16.0, 2.5), (11.5, 11.8, 0.15)],
)
def test_steps_count_by_the_part_inside(start_s: float, end_s: float, steps: float) -> None:
    assert count_steps([10.0, 12.0, 14.0, 16.0], Window(start_s, end_s)) == pytest.approx(steps)


def test_parts_are_parts_of_their_own_step() -> None:
    assert count_steps([0.0, 1.0, 5.0, 6.0], Window(0.5, 4.0)) == pytest.approx(0.5 + 0.75)


def test_a_lap_alone_is_measured_from_its_first_end() -> None:
    hosts = [lap(*settled(5.0, 6.0, 7.5, 8.0), cpu_s=0.3), lap(*settled(5.0, 6.0, 7.0, 7.9), cpu_s=0.6)]
    found = measure_laps([hosts])
    assert found.steps_s == (pytest.approx(1.0),)
    assert found.cpu == pytest.approx(0.9 / (8.0 - hosts[0].ends_s[0]))


def test_in_company_only_the_common_time_counts() -> None:
    quick = [lap(*settled(*(1.0 + 0.5 * step for step in range(9)), 5.1))]  # 1 to 5, but alone from 1 to 2
    slow = [lap(*settled(2.0, 3.0, 4.0, 5.0, 6.0, 6.1, 6.2))]  # alone and quick after 5
    found = measure_laps([quick, slow])
    assert found.steps_s == (pytest.approx(0.5), pytest.approx(1.0))


def test_the_pace_in_company_is_that_of_the_common_time() -> None:
    quick = [lap(0.5, 1.0, 1.5, 2.0)]
    slow = [lap(0.5, 3.5, 3.6, 3.7, 3.8)]  # still in its first step when the other job ends
    assert find_paces([quick, slow]) == pytest.approx([0.5, 3.0])
    assert find_paces([quick, [lap(2.5, 3.5, 4.5)]]) == pytest.approx([0.5, 1.0])  # they never met


def test_the_gain_is_work_over_time() -> None:
    # In 10 s: 10 steps of a second and 4 steps of two make 18 s of work.
    assert find_gain([1.0, 2.0], [1.0, 2.5]) == pytest.approx(1.8)
    assert find_gain([1.0, 2.0], [2.0, 4.0]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("compute_s", "alone_s", "ideal"),
    [
        ([1.0, 1.0], [1.5, 1.5], 1.5),  # the device is the limit
        ([1.0, 1.0], [2.0, 2.0], 2.0),  # neither device nor network is a limit
        ([1.0, 1.0], [3.0, 3.0], 1.5),  # the network is the limit
        ([1.0, 1.0], [1.0, 1.0], 1.0),  # nothing to hide
        ([1.0, 1.0], [0.9, 0.9], 1.0),  # noise does not make waits negative
    ],
)
def test_the_ideal_is_the_predicted_one(compute_s: list[float], alone_s: list[float], ideal: float) -> None:
    loads = [make_load(compute_s=c, alone_s=alone) for c, alone in zip(compute_s, alone_s, strict=True)]
    assert predict_gain(loads) == pytest.approx(ideal)


def test_unequal_jobs_may_gain_more_with_other_numbers_of_steps() -> None:
    loads = [make_load(compute_s=1.0, alone_s=2.0), make_load(compute_s=3.0, alone_s=6.0)]
    assert predict_gain(loads) == pytest.approx(8 / 6)
    assert predict_gain(loads, [3.0, 1.0]) == pytest.approx(2.0)
    assert predict_gain(loads, [0.3, 0.1]) == pytest.approx(2.0)


def test_what_a_job_hides_is_sent_all_the_same() -> None:
    loads = [make_load(compute_s=1.0, alone_s=1.5, links_s=1.2)] * 2
    assert predict_gain(loads) == pytest.approx(3.0 / 2.4)
    assert predict_gain(loads, [2.0, 1.0]) == pytest.approx(4.5 / 3.6)


def test_the_bytes_of_a_step_are_those_of_the_host_that_sends_most() -> None:
    ends_s = settled(1.0, 2.0, 3.0)
    laps = [lap(*ends_s), lap(*ends_s)]
    assert measure_laps([laps], [50 * len(ends_s), 100 * len(ends_s)]).sent_bytes == 100.0


def test_the_middle_of_laps_is_each_jobs_own() -> None:
    assert find_middle([measured(1.0, 5.0), measured(2.0, 4.0), measured(9.0, 6.0)]) == (2.0, 5.0)


def test_gains_are_those_of_rounds_each_against_its_own_laps_alone() -> None:
    alone = [[measured(1.0), measured(2.0)], [measured(1.0), measured(2.0)]]  # a machine that got slower
    assert find_gains(alone, [measured(1.25, 1.25), measured(2.0, 2.5)]) == pytest.approx([1.6, 1.8])


def test_a_lap_has_at_least_three_steps_after_those_that_settle() -> None:
    mark = 1 + SETTLE
    assert [choose_steps([step_s], 6.0) for step_s in (0.01, 0.5, 2.0, 100.0)] == [
        [mark + 600],
        [mark + 12],
        [mark + 3],
        [mark + 3],
    ]


def test_jobs_of_any_pace_end_at_about_the_same_time() -> None:
    assert choose_steps([2.0, 0.5], 6.0) == [1 + SETTLE + 3 + FINISH, 1 + 4 * (SETTLE + 3) + FINISH]


# Which bandwidth


def test_the_estimate_lets_all_gradients_travel_both_ways_at_once() -> None:
    # Of 4 hosts each sends three quarters to the shards and three quarters back: 1.5 MB, and headers.
    assert estimate_rate(1_000_000, hosts=4, exposed_s=0.1) == pytest.approx(1.5e6 * 8 / 0.1, rel=0.06)


def test_corrections_are_in_proportion_and_never_wild() -> None:
    assert correct_rate(100.0, found_s=1.2, wanted_s=1.0) == pytest.approx(120.0)
    assert correct_rate(100.0, found_s=50.0, wanted_s=1.0) == 400.0
    assert correct_rate(100.0, found_s=-0.1, wanted_s=1.0) == 25.0


def test_close_is_a_matter_of_percent() -> None:
    assert is_close(1.02, 1.0)
    assert is_close(0.98, 1.0)
    assert not is_close(1.05, 1.0)
    assert not is_close(0.95, 1.0)
