"""The layout of a picture: panels, lines, references and labels."""

from __future__ import annotations

import pytest

from tests.support.report_samples import BANDWIDTHS, point, replace, sweep
from undertow.observe.report.panels import Axis, choose_axis, make_panels, make_title
from undertow.observe.report.points import Point


def grow(hosts: tuple[int, ...] = (1, 2, 4, 8), **changes: object) -> list[Point]:
    return [replace(p, hosts=number, **changes) for number in hosts for p in sweep((10.0,))]


def test_there_is_a_line_for_every_system_from_left_to_right() -> None:
    (panel,) = make_panels(list(reversed(sweep())))
    assert panel.axis is Axis.BANDWIDTH
    assert {line.system for line in panel.lines} == {"ddp", "undertow"}
    assert all(tuple(mark.x for mark in line.marks) == BANDWIDTHS for line in panel.lines)


def test_a_mark_is_throughput_with_its_quartiles_the_right_way_up() -> None:
    (panel,) = make_panels([point(hosts=4, batch=32, iteration_s=0.5, iteration_low_s=0.4, iteration_high_s=0.8)])
    (mark,) = panel.lines[0].marks
    assert (mark.low, mark.y, mark.high) == pytest.approx((160, 256, 320))


@pytest.mark.parametrize("change", [{"model": "vgg19"}, {"hosts": 8}, {"batch": 64}, {"scale": 2.0}])
def test_points_that_a_line_must_not_join_are_in_different_panels(change: dict[str, object]) -> None:
    first, second = make_panels([*sweep(), *(replace(p, **change) for p in sweep())])
    assert [len(line.marks) for panel in (first, second) for line in panel.lines] == [8] * 4


def test_measured_and_simulated_are_two_lines_of_one_panel() -> None:
    (panel,) = make_panels([*sweep(), *(replace(p, origin="simulated") for p in sweep())])
    assert len(panel.lines) == 4


def test_the_title_has_what_is_common_and_panels_what_differs() -> None:
    points = [*sweep(), *(replace(p, model="vgg19", hosts=8) for p in sweep())]
    assert make_title(points) == "batch 32 per host, measured"
    assert [panel.title for panel in make_panels(points)] == ["resnet50, 4 hosts", "vgg19, 8 hosts"]
    assert [panel.title for panel in make_panels(sweep())] == [""]


def test_hosts_are_the_axis_only_if_bandwidth_does_not_vary() -> None:
    assert choose_axis(grow()) is Axis.HOSTS
    assert choose_axis([*grow(), *sweep((20.0,))]) is Axis.BANDWIDTH
    assert choose_axis([point()]) is Axis.BANDWIDTH


def test_over_hosts_a_model_has_one_panel_and_linear_speed_up_rises_with_them() -> None:
    (panel,) = make_panels(grow())
    assert [mark.x for mark in panel.lines[0].marks] == [1, 2, 4, 8]
    assert panel.linear == tuple((float(n), n * 32 / 0.5) for n in (1, 2, 4, 8))
    assert make_title(grow()).endswith(", 10 Gbit/s")
    assert make_title(grow(bandwidth_gbit=None)).endswith(", unshaped")


def test_unshaped_points_are_separate_on_the_right() -> None:
    (panel,) = make_panels(sweep((1.0, 40.0, None)))
    for line in panel.lines:
        assert [mark.is_apart for mark in line.marks] == [False, False, True]
        assert panel.apart is not None
        assert 40.0 < panel.apart < line.marks[-1].x < panel.limits[1]
    assert list(panel.ticks.values()) == ["unshaped", "40", "1"]


def test_if_all_points_are_unshaped_none_is_separate() -> None:
    (panel,) = make_panels(sweep((None,)))
    assert panel.apart is None
    assert not panel.lines[0].marks[0].is_apart
    assert panel.bound == ()


def test_linear_speed_up_is_a_multiple_of_one_worker() -> None:
    (panel,) = make_panels(sweep((1.0, 10.0, None)))
    assert {y for _, y in panel.linear} == {4 * 32 / 0.5}


def test_the_bound_is_what_the_longer_of_compute_and_network_allows() -> None:
    (panel,) = make_panels(sweep((1.0, 2.0, 10.0, None)))
    assert panel.bound == ((1.0, 4 * 32 / 1.25), (2.0, 4 * 32 / 0.625), (10.0, 4 * 32 / 0.5))


def test_no_line_crosses_the_bound_where_its_points_keep_to_it() -> None:
    (panel,) = make_panels(sweep((1.0, 1.5, 2.0, 10.0)))
    places = [x for x, _ in panel.bound]
    assert all([mark.x for mark in line.marks] == places for line in panel.lines)


def test_references_cross_a_panel_with_one_bandwidth() -> None:
    (panel,) = make_panels(sweep((10.0,)))
    assert [x for x, _ in panel.linear] == [x for x, _ in panel.bound] == list(panel.limits)
    assert panel.limits[0] < 10.0 < panel.limits[1]


def test_of_systems_that_send_different_bytes_the_highest_bound_is_drawn() -> None:
    (panel,) = make_panels([point(system="a", bound_s=0.4), point(system="b", bound_s=0.5), point(bound_s=0.41)])
    assert panel.bound[0][1] == pytest.approx(4 * 32 / 0.4)


def test_labels_that_would_overlap_are_left_out_except_the_rightmost() -> None:
    assert list(make_panels(sweep())[0].ticks.values()) == ["40", "20", "15", "10", "5", "4", "2", "1"]
    assert list(make_panels(sweep((1.0, 38.0, 39.0, 40.0)))[0].ticks.values()) == ["40", "1"]
    assert list(make_panels(grow((1, 2, 3, 64)))[0].ticks.values()) == ["64", "3"]
