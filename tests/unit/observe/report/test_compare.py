"""Verdicts on changes: only differences beyond the noise count, and the reason is given in words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.support.report_samples import point, replace, results, sweep, timed
from undertow.observe.report.compare import Change, Verdict, compare, list_differences, make_comparison_table
from undertow.observe.report.points import Point


def judge(before: Point, after: Point) -> Change:
    (change,) = compare(results([before]), results([after]))
    return change


@pytest.mark.parametrize(
    ("before", "after", "verdict", "reason"),
    [
        # The noise is the larger disagreement of the two.
        ((1.0, 0.023), (0.929, 0.0), Verdict.FASTER, "-7.1 %, beyond the noise of 2.3 %"),
        ((1.0, 0.0), (1.071, 0.023), Verdict.SLOWER, "+7.1 %, beyond the noise of 2.5 %"),
        ((1.0, 0.023), (1.02, 0.0), Verdict.SAME, "+2.0 %, within the noise of 2.3 %"),
        ((1.0, 0.023), (0.98, 0.001), Verdict.SAME, "-2.0 %, within the noise of 2.3 %"),
        # On a busy machine, a difference must be beyond twice the noise.
        ((1.0, 0.08), (1.01, 0.0), Verdict.TOO_NOISY, "+1.0 %, within twice the noise of 8.0 %"),
        ((1.0, 0.0), (0.88, 0.08), Verdict.TOO_NOISY, "-12.0 %, within twice the noise of 7.0 %"),
        ((1.0, 0.08), (1.2, 0.0), Verdict.SLOWER, "+20.0 %, beyond twice the noise of 8.0 %"),
        # A simulation has no noise, but rounding is not a change.
        ((1.0, 0.0), (1.0, 0.0), Verdict.SAME, "+0.0 %, within the noise of 0.1 %"),
        ((1.0, 0.0), (1.0 + 1e-12, 0.0), Verdict.SAME, "+0.0 %, within the noise of 0.1 %"),
        ((1.0, 0.0), (0.998, 0.0), Verdict.FASTER, "-0.2 %, beyond the noise of 0.1 %"),
    ],
)
def test_disagreement_decides_what_counts(
    before: tuple[float, float], after: tuple[float, float], verdict: Verdict, reason: str
) -> None:
    change = judge(*(timed(time_s, disagreement=noise) for time_s, noise in (before, after)))
    assert (change.verdict, change.reason) == (verdict, reason)
    assert change.ratio == pytest.approx(after[0] / before[0])


def test_the_spread_of_the_median_counts_and_shrinks_with_the_steps() -> None:
    def verdict(steps: int) -> Verdict:
        ends = (timed(time_s, spread=0.1, steps=steps, disagreement=0.0) for time_s in (1.0, 1.04))
        return judge(*ends).verdict

    # Both notches together: 2.04 * 1.57 * 0.1 / sqrt(steps).
    assert verdict(25) is Verdict.TOO_NOISY  # 6.4 %
    assert verdict(49) is Verdict.SAME  # 4.6 %
    assert verdict(100) is Verdict.SLOWER  # 3.2 %


def test_notches_of_both_points_count_together() -> None:
    calm, wide = timed(1.0, disagreement=0.0), timed(1.0, spread=0.2, disagreement=0.0)  # notch 3.1 % at 100 steps
    moved = replace(calm, iteration_s=1.04)
    assert judge(wide, moved).verdict is Verdict.SLOWER
    assert judge(wide, replace(wide, iteration_s=1.04)).verdict is Verdict.TOO_NOISY


@pytest.mark.parametrize("time_s", [0.5, 0.9, 0.949, 0.951, 0.976, 0.978, 1.0, 1.022, 1.024, 1.051, 1.1, 2.0])
@pytest.mark.parametrize("noise", [0.0, 0.0234, 0.0499, 0.051, 0.3])
def test_swapping_before_and_after_swaps_the_verdict(time_s: float, noise: float) -> None:
    one, other = timed(1.0, disagreement=noise), timed(time_s, disagreement=0.01)
    swapped = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    verdict = judge(one, other).verdict
    assert judge(other, one).verdict is swapped.get(verdict, verdict)


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "vgg19"},
        {"hosts": 8},
        {"bandwidth_gbit": 20.0},
        {"bandwidth_gbit": None},
        {"scale": 2.0},
        {"system": "ddp"},
        {"batch": 64},
    ],
)
def test_only_equal_settings_are_compared_and_other_points_are_listed(changed: dict[str, object]) -> None:
    changes = compare(results([point()]), results([point(**changed)]))
    assert [(c.verdict, c.reason, c.ratio) for c in changes] == [
        (Verdict.GONE, "only before", None),
        (Verdict.NEW, "only after", None),
    ]
    assert [c.point for c in changes] == [point(), point(**changed)]


def test_changes_are_in_the_order_of_before_and_new_points_come_last() -> None:
    before, new = sweep((1.0, 10.0)), point(system="horovod")
    changes = compare(results(before), results([new, *reversed(before)]))
    assert [change.point for change in changes] == [*before, new]
    assert {change.verdict for change in changes[:-1]} == {Verdict.SAME}


def test_points_with_equal_keys_are_compared_in_order() -> None:
    before = [timed(1.0, disagreement=0.0), timed(2.0, disagreement=0.0)]
    after = [timed(1.0, disagreement=0.0), timed(2.2, disagreement=0.0), timed(3.0)]
    verdicts = [change.verdict for change in compare(results(before), results(after))]
    assert verdicts == [Verdict.SAME, Verdict.SLOWER, Verdict.NEW]


def test_a_simulation_compared_with_a_measurement_is_marked() -> None:
    change = judge(timed(1.0, origin="simulated"), timed(1.1, disagreement=0.02))
    assert change.reason == "+10.0 %, beyond the noise of 2.2 %; simulated before, measured after"


def test_another_machine_or_version_is_noted_and_the_same_is_not() -> None:
    before = results([], machine={"cpu": "Z80", "cores": "2"}, versions={"torch": "2.12"})
    after = results([], machine={"cpu": "Z80", "cores": "4"}, versions={"torch": "2.13", "numpy": "2.4"})
    assert list_differences(before, after) == [
        "machine differs: cores 2 before, 4 after",
        "version differs: torch 2.12 before, 2.13 after",
        "version differs: numpy – before, 2.4 after",
    ]
    assert list_differences(before, before) == []


def render(changes: list[Change], notes: tuple[str, ...] = ()) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=100, color_system=None).print(make_comparison_table(changes, notes=notes))
    return [" ".join(line.split()) for line in text.getvalue().splitlines()]


def test_the_table_has_a_row_for_every_change_with_its_reason() -> None:
    before = [timed(1.0, disagreement=0.023), point(system="ddp")]
    after = [timed(0.929, disagreement=0.0), point(system="[x]", bandwidth_gbit=None)]
    lines = render(compare(results(before), results(after)), ("version differs: a 1 before, 2 after",))
    assert lines[2] == "Gbit/s system ms ms verdict reason"
    assert lines[4:7] == [
        "10 undertow 1000 929 faster -7.1 %, beyond the noise of 2.3 %",
        "10 ddp 500 – gone only before",
        "unshaped [x] – 500 new only after",
    ]
    assert lines[-2:] == ["resnet50, 4 hosts, batch 32 per host, measured", "version differs: a 1 before, 2 after"]


def test_the_table_names_the_model_if_there_are_several() -> None:
    points = [point(), point(model="vgg19", hosts=8)]
    lines = render(compare(results(points), results(points)))
    assert lines[4].startswith("resnet50 4 10 undertow ")
    assert lines[5].startswith("vgg19 8 10 undertow ")


def test_comparing_nothing_is_an_empty_table() -> None:
    assert "verdict" in " ".join(render(compare(results([]), results([]))))
