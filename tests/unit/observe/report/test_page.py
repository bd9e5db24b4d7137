"""The page of results: self-contained, with definitions, and all names escaped."""

from __future__ import annotations

import re
import sys

import pytest

from tests.support.html_reader import NASTY, Reader
from tests.support.report_samples import point, results, sweep
from undertow.observe.report.columns import COLUMNS
from undertow.observe.report.page import make_page


@pytest.fixture(scope="module")
def page() -> str:
    return make_page(results([*sweep((1.0, 10.0, None)), point(system="horovod", disagreement=0.2)]))


def test_the_page_says_how_it_was_measured(page: str) -> None:
    text = Reader(page).text
    for expected in (
        "undertow: measured speed of resnet50",
        "resnet50, 4 hosts, batch 32 per host, measured",
        "cpu: Z80; cores: 2",
        "2026-11-16T10:11:12Z",
        "undertow: 0.1.0; torch: 2.13.0",
        "undertow bench --hosts 4",
        "Four hosts share two cores.",
    ):
        assert expected in text


def test_the_page_loads_nothing_and_runs_nothing(page: str) -> None:
    reader = Reader(page)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(reader.tags)
    for name, value in reader.attributes:
        assert not name.startswith("on")
        assert name not in ("href", "src", "xlink:href") or str(value).startswith("#")
    assert "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))


def test_every_column_has_a_tooltip_and_a_definition(page: str) -> None:
    reader = Reader(page)
    titles = [value for name, value in reader.attributes if name == "title"]
    for column in (column for column in COLUMNS[6:] if column.heading != "exposed ms"):  # of simulated points only
        assert column.definition in titles
        assert column.definition in reader.text


def test_columns_described_in_words_are_also_defined() -> None:
    scale = next(column for column in COLUMNS if column.heading == "scale")
    assert scale.definition not in Reader(make_page(results([point(scale=1.0)]))).text
    assert scale.definition in Reader(make_page(results([point(scale=4.0)]))).text


def test_every_point_is_a_row_and_every_bandwidth_a_group(page: str) -> None:
    tags = Reader(page).tags
    assert tags.count("tr") == 1 + 7
    assert tags.count("tbody") == 3
    assert page.count('<tr class="noisy" title="too noisy: ') == 1
    assert "<td>~500 (490–510)</td>" in page


def test_the_picture_is_inline_and_follows_light_and_dark(page: str) -> None:
    assert page.count("<svg ") == 1
    assert "currentColor" in page
    svg = page[page.index("<svg ") : page.index("</svg>")]
    assert "#1b1f24" not in svg
    assert "#ffffff" not in svg
    assert "prefers-color-scheme: dark" in page


def test_the_page_fits_a_phone(page: str) -> None:
    assert '<meta name="viewport" content="width=device-width' in page
    assert page.count('<div class="box" tabindex="0"><table>') == 1
    assert page.count('<div class="box" tabindex="0"><svg ') == 1


@pytest.mark.parametrize("other", [NASTY, "b"])  # the model is said in the text, or is a column
def test_all_text_from_outside_is_escaped(other: str) -> None:
    nasty = results(
        [point(model=NASTY, system=NASTY), point(model=other, system=NASTY)],
        machine={NASTY: NASTY},
        date=NASTY,
        versions={NASTY: NASTY},
        command=NASTY,
        notes=[NASTY],
    )
    made = make_page(nasty)
    reader = Reader(made)
    assert "script" not in reader.tags
    assert "<script" not in made
    # title, heading, model, two systems, machine and versions twice each, date, command, note; model and system drawn.
    assert reader.text.count(NASTY) == 12 + 2


def test_without_matplotlib_the_page_says_how_to_get_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    made = make_page(results([point()]))
    assert "<svg" not in made
    reader = Reader(made)
    assert "No picture: pictures need matplotlib: pip install 'undertow[pictures]'" in reader.text
    assert "500 (490–510)" in reader.text


def test_a_page_without_points_says_so() -> None:
    text = Reader(make_page(results([], notes=[]))).text
    assert "There are no points in these results." in text
    assert "Notes" not in text


def test_the_same_results_make_the_same_page() -> None:
    assert make_page(results([point()])) == make_page(results([point()]))
