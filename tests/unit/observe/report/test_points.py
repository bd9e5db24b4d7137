"""Results and their file; invalid files are refused by name and field."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.report_samples import point, results, sweep
from undertow.errors import ConfigError
from undertow.observe.report.points import NOISE, read_results, write_results


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.json"


def test_results_are_read_as_they_were_written(path: Path) -> None:
    simulated = point(bandwidth_gbit=None, gain_over_ddp=None, bytes_out_per_host=None, cpu_s=None, origin="simulated")
    written = results([*sweep(), simulated])
    write_results(written, path)
    assert read_results(path) == written
    assert read_results(os.fspath(path)) == written


def test_the_file_is_json_for_people(path: Path) -> None:
    write_results(results([point()]), path)
    text = path.read_text()
    assert json.loads(text)["points"][0]["system"] == "undertow"
    assert text.endswith("}\n")
    assert '\n  "machine"' in text


def test_unknown_fields_are_ignored(path: Path) -> None:
    write_results(results([point()]), path)
    stored = json.loads(path.read_text())
    stored["colour"] = "blue"
    stored["points"][0]["temperature"] = 21
    path.write_text(json.dumps(stored))
    assert read_results(path) == results([point()])


def change(path: Path, where: tuple[str | int, ...], value: Any) -> None:
    write_results(results([point(), point()]), path)
    stored = place = json.loads(path.read_text())
    for step in where[:-1]:
        place = place[step]
    if value is None:
        del place[where[-1]]
    else:
        place[where[-1]] = value
    path.write_text(json.dumps(stored))


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (("points", 1, "hosts"), "four", "$.points[1].hosts"),
        (("points", 1, "hosts"), 0, "hosts of a point is 0, which is not possible: give 1 to 1024 hosts"),
        (("points", 1, "hosts"), 10**12, "hosts of a point is 1000000000000, which is not possible"),
        (("points", 1, "scale"), 1e-300, "scale of a point is 1e-300, which is not possible"),
        (("points", 1, "iteration_s"), 1e-300, "give 1e-09 to 1000000000 seconds"),
        (("points", 1, "origin"), "guessed", "origin of a point is 'guessed'"),
        (("points", 1, "iteration_s"), None, "missing required field `iteration_s` - at `$.points[1]`"),
        (("points",), 3, "$.points"),
        (("machine",), None, "missing required field `machine`"),
        (("format",), None, "missing required field `format`"),
        (("format",), 2, "format 2, but this undertow reads up to 1: update undertow"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_field(
    path: Path, where: tuple[str | int, ...], value: Any, words: str
) -> None:
    change(path, where, value)
    with pytest.raises(ConfigError) as caught:
        read_results(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_a_newer_format_is_refused_before_its_fields_are_read(path: Path) -> None:
    path.write_text('{"format": 99, "points": "elsewhere"}')
    with pytest.raises(ConfigError, match="format 99"):
        read_results(path)


@pytest.mark.parametrize("data", [b"", b"hello", b'{"format": 1', b"\xff\xfe", b"PK\x03\x04"])
def test_a_file_that_is_not_json_is_refused_by_name(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"results\.json is not JSON: "):
        read_results(path)


@pytest.mark.parametrize("data", [b"[]", b"null", b"17"])
def test_json_that_is_something_else_is_refused_by_name(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"results\.json is not a results file of undertow: "):
        read_results(path)


def test_a_missing_file_and_a_missing_folder_are_named(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"results\.json: No such file"):
        read_results(path)
    with pytest.raises(ConfigError, match=r"nowhere/r\.json: No such file"):
        write_results(results([]), path.parent / "nowhere" / "r.json")


@pytest.mark.parametrize(
    "wrong",
    [
        {"iteration_s": math.nan},
        {"bound_s": math.inf},
        {"gain_over_ddp": math.nan},
        {"iteration_s": 0.0},
        {"compute_s": -1.0},
        {"bandwidth_gbit": 0.0},
        {"batch": 0},
        {"steps": 0},
        {"origin": "Measured"},
    ],
)
def test_an_impossible_point_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))} of a point is "):
        point(**wrong)


def test_derived_figures_of_a_point() -> None:
    one = point(hosts=4, batch=32, iteration_s=0.5, compute_s=0.4, bound_s=0.45)
    assert one.of_compute == pytest.approx(1.25)
    assert one.of_bound == pytest.approx(0.9)
    assert one.samples_per_s == pytest.approx(256)
    assert one.is_shaped
    assert not point(bandwidth_gbit=None).is_shaped


def test_a_point_is_noisy_only_above_the_limit() -> None:
    assert not point(disagreement=NOISE).is_noisy
    assert point(disagreement=NOISE * 1.001).is_noisy
