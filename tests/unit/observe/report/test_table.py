"""The table of results: every figure once, within the width of the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from tests.support.report_samples import point, replace, sweep
from undertow.observe.report.columns import COLUMNS, choose_columns, describe_common, group_rows
from undertow.observe.report.points import Point
from undertow.observe.report.table import make_table


def render(table: Table, width: int = 100) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def headings(points: list[Point]) -> list[str]:
    return [column.heading for column in choose_columns(points)]


def find(lines: list[str], *words: str) -> str:
    return next(line for line in lines if all(word in line.split() for word in words))


def test_a_row_has_all_figures_of_a_point() -> None:
    lines = render(make_table([point(disagreement=0.01)], title="bench"))
    assert lines[0] == "bench"
    assert find(lines, "undertow").split() == [
        *("10", "undertow", "500", "(490–510)", "1.25", "3.20", "1.25", "90", "153", "2.50")
    ]
    assert lines[-1] == "resnet50, 4 hosts, batch 32 per host, measured"


@pytest.mark.parametrize("name", ["undertow", "undertow-poseidon"])
def test_one_model_fits_in_100_columns(name: str) -> None:
    points = [replace(p, system=name) if p.system == "undertow" else p for p in sweep((1.0, 40.0, None))]
    points.append(point(iteration_s=12.345, iteration_low_s=11.999, iteration_high_s=13.111, disagreement=0.3))
    points.append(point(bytes_out_per_host=12345e6, cpu_s=123.4, speedup=12.3, gain_over_ddp=10.1))
    lines = render(make_table(points), width=100)
    assert lines == render(make_table(points), width=300)
    assert max(map(len, lines)) <= 100
    assert "…" not in "".join(lines)
    assert find(lines, "40", name)
    assert "~12345 (11999–13111)" in "\n".join(lines)


def test_values_shared_by_all_points_are_below_the_table() -> None:
    assert headings([point(), point(system="ddp")])[:2] == ["Gbit/s", "system"]
    assert describe_common([point(hosts=1, scale=4.0)]) == "resnet50, 1 host, batch 32 per host, scale 4, measured"


@pytest.mark.parametrize(
    ("change", "heading"),
    [
        ({"model": "vgg19"}, "model"),
        ({"hosts": 8}, "hosts"),
        ({"batch": 64}, "batch"),
        ({"scale": 2.0}, "scale"),
        ({"origin": "simulated"}, "origin"),
    ],
)
def test_values_that_differ_are_columns(change: dict[str, object], heading: str) -> None:
    points = [point(), point(**change)]
    assert headings(points)[0] == heading
    assert str(next(iter(change.values()))) not in describe_common(points)


def test_a_figure_of_no_point_has_no_column_and_a_missing_figure_is_a_dash() -> None:
    unknown = point(gain_over_ddp=None, bytes_out_per_host=None, cpu_s=None)
    assert headings([unknown])[-1] == "% of bound"
    row = find(render(make_table([unknown, point(system="ddp")])), "undertow").split()
    assert row[-4:] == ["–", "90", "–", "–"]


def test_a_noisy_point_is_marked_and_the_mark_explained() -> None:
    lines = render(make_table([point(disagreement=0.08), point(system="ddp")]))
    assert "~500" in find(lines, "undertow")
    assert "~" not in find(lines, "ddp")
    assert lines[-1] == "~ too noisy: another run may well differ by more than 5 %"
    assert "~" not in "".join(render(make_table([point()])))


def test_an_unshaped_point_says_so_and_comes_last() -> None:
    lines = render(make_table(sweep((None, 10.0))))
    assert lines.index(find(lines, "unshaped", "ddp")) > lines.index(find(lines, "10", "undertow"))


def test_bandwidths_ascend_with_a_gap_between_them_and_systems_keep_their_order() -> None:
    points = [p for system in ("undertow", "ddp") for p in sweep((10.0, 2.0)) if p.system == system]
    rows = render(make_table(points))
    first = rows.index(find(rows, "2", "undertow"))
    assert [line.split()[:2] for line in rows[first : first + 5]] == [
        ["2", "undertow"],
        ["2", "ddp"],
        [],
        ["10", "undertow"],
        ["10", "ddp"],
    ]


def test_models_keep_their_order_and_hosts_ascend_within_them() -> None:
    points = [point(model=model, hosts=hosts) for model in ("vgg19", "bert") for hosts in (8, 2)]
    assert [(p.model, p.hosts) for (p,) in group_rows(points)] == [("vgg19", 2), ("vgg19", 8), ("bert", 2), ("bert", 8)]


def test_names_are_never_markup() -> None:
    lines = render(make_table([point(model="[red]net[/red]", system="[bold]x")], title="[link]"))
    assert lines[0] == "[link]"
    assert find(lines, "[bold]x")
    assert lines[-1].startswith("[red]net[/red], ")


def test_no_points_make_an_empty_table() -> None:
    assert "system" in " ".join(render(make_table([])))


def test_every_column_has_its_own_heading_and_a_definition_in_full_sentences() -> None:
    assert len({column.heading for column in COLUMNS}) == len(COLUMNS)
    assert all(column.definition[0].isupper() and column.definition.endswith(".") for column in COLUMNS)
