"""Figures from laps: the duration of a step, how certain it is, and what the step cost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from undertow.tools.lab.bench.laps import Record, find_durations, find_ends
from undertow.tools.lab.bench.messages import Lap


def lap(ends_s: Sequence[float], *, cpu_s: float = 0.0) -> Lap:
    return Lap(ends_s=list(ends_s), cpu_s=cpu_s, sent_bytes=None, digest=1)


def record(*laps_s: Sequence[float]) -> Record:
    """Return a record of laps of one host with these step durations; the first step of each lap is an extra one."""
    made = Record()
    for durations_s in laps_s:
        made.add([lap(list(itertools.accumulate(durations_s, initial=100.0)))], bytes_out=[0])
    return made


def test_a_step_ends_when_its_last_host_ends_it() -> None:
    hosts = [lap([1.0, 2.0, 3.5]), lap([1.5, 1.9, 3.0]), lap([0.2, 2.4, 3.4])]
    assert find_ends(hosts) == [1.5, 2.4, 3.5]
    assert find_durations(hosts) == pytest.approx([0.9, 1.1])


def test_the_first_step_only_sets_the_mark() -> None:
    assert find_durations([lap([1000.0, 1001.0])]) == pytest.approx([1.0])
    assert find_durations([lap([7.0])]) == []


def test_hosts_that_made_different_numbers_of_steps_are_no_lap() -> None:
    with pytest.raises(ValueError, match="shorter"):
        find_durations([lap([1.0, 2.0]), lap([1.0])])


def test_the_time_between_laps_counts_for_nobody() -> None:
    made = Record()
    for start_s in (0.0, 5000.0):
        made.add([lap([start_s, start_s + 1, start_s + 2])], bytes_out=[0])
    assert made.summarise().iteration_s == 1.0
    assert made.durations_s == [[1.0, 1.0], [1.0, 1.0]]


def test_median_and_quartiles_are_those_of_all_steps() -> None:
    summary = record([5.0, 1.0, 3.0], [2.0, 4.0, 6.0, 7.0]).summarise()
    assert (summary.low_s, summary.iteration_s, summary.high_s) == pytest.approx((2.0, 4.0, 6.0))
    assert summary.steps == 7


def test_one_slow_step_moves_no_median() -> None:
    assert record([1.0] * 9 + [60.0]).summarise().iteration_s == pytest.approx(1.0)


def test_a_single_step_has_no_spread() -> None:
    summary = record([2.0]).summarise()
    assert (summary.low_s, summary.iteration_s, summary.high_s, summary.steps) == (2.0, 2.0, 2.0, 1)


def test_laps_with_even_and_odd_numbers_are_compared() -> None:
    slow, fast = [1.2] * 50, [1.0] * 50
    assert record(fast, slow).disagreement == pytest.approx(0.2)
    assert record(slow, fast).disagreement == pytest.approx(0.2)
    assert record(fast, slow, fast, slow).disagreement == pytest.approx(0.2)


def test_steps_that_scatter_make_unsure_until_there_are_enough() -> None:
    def disagreement(laps: int) -> float:
        return record(*[[0.9, 1.0, 1.0, 1.1]] * laps).disagreement  # the halves agree to the bit

    assert disagreement(2) > disagreement(4) > disagreement(200)
    assert disagreement(2) == pytest.approx(2 * 1.57 * 0.15 / 8**0.5)  # quartiles 0.925 and 1.075
    assert disagreement(200) < 0.02


def test_each_half_is_worth_its_median() -> None:
    assert record([1.0] * 9 + [9.0], [8.0, 2.0] + [1.0] * 8).disagreement == 0.0


@pytest.mark.parametrize("laps_s", [[], [[1.0, 1.0, 1.0]]])
def test_before_there_are_two_laps_nothing_is_sure(laps_s: list[list[float]]) -> None:
    assert record(*laps_s).disagreement == 1.0


def test_the_summary_says_how_sure_it_is() -> None:
    assert record([1.0] * 50, [1.5] * 50).summarise().disagreement == pytest.approx(0.5)
    assert record([1.0]).summarise().disagreement == 1.0


def test_bytes_are_per_step_and_host() -> None:
    made = Record()
    made.add([lap([1, 2, 3, 4]), lap([1, 2, 3, 4])], bytes_out=[100, 300])
    made.add([lap([1, 2]), lap([1, 2])], bytes_out=[50, 150])
    # Six steps, the first ones of each lap included: they sent too.
    assert made.summarise().bytes_out == (200 + 100) / 6


def test_cpu_time_is_per_step_of_all_hosts_together() -> None:
    made = Record()
    made.add([lap([1, 2, 3], cpu_s=0.6), lap([1, 2, 3], cpu_s=0.9)], bytes_out=[0, 0])
    assert made.summarise().cpu_s == pytest.approx(0.5)
