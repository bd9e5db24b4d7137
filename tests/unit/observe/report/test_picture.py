"""Pictures: drawn without a display, reproducible, without lasting effects."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from tests.support.report_samples import point, replace, sweep
from undertow.errors import ConfigError
from undertow.observe.report.panels import make_panels
from undertow.observe.report.picture import _COLOURS, _choose_styles, draw_png, draw_svg

SVG = "{http://www.w3.org/2000/svg}"


def read_texts(svg: str) -> list[str]:
    return ["".join(element.itertext()).strip() for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_the_same_points_give_the_same_svg() -> None:
    points = sweep((1.0, 10.0, None))
    assert draw_svg(points) == draw_svg(points)


def test_the_svg_stands_alone_and_names_no_date_and_no_other_machine() -> None:
    svg = draw_svg(sweep((1.0, 10.0)))
    assert svg.startswith("<svg ")
    assert ElementTree.fromstring(svg).tag == f"{SVG}svg"
    assert "<!DOCTYPE" not in svg
    assert "<metadata" not in svg
    links = re.findall(r'(?:href|src)="([^"]*)"|url\(([^)]*)\)', svg)
    assert all((first or second).startswith("#") for first, second in links)


def test_everything_in_the_picture_has_a_label() -> None:
    texts = read_texts(draw_svg([*sweep((1.0, 10.0, None)), point(disagreement=0.2)]))
    for expected in (
        *("ddp", "undertow", "linear speed-up", "bound", "quartiles of the steps", "too noisy"),
        *("1", "10", "unshaped", "samples/s", "bandwidth of each host, Gbit/s"),
        "resnet50, 4 hosts, batch 32 per host, measured",
    ):
        assert texts.count(expected) == 1, (expected, texts)


def test_the_legend_has_only_what_is_drawn() -> None:
    calm = [replace(p, iteration_low_s=p.iteration_s, iteration_high_s=p.iteration_s) for p in sweep((1.0, 10.0))]
    assert not {"too noisy", "quartiles of the steps", "unshaped"} & set(read_texts(draw_svg(calm)))


def test_names_are_never_formulas_or_tags() -> None:
    names = ["$\\frac{", "<b>&amp;", 'a"b']
    texts = read_texts(draw_svg([point(system=name, model="$x^2$ <i>") for name in names]))
    assert set(names) <= set(texts)
    assert any(text.startswith("$x^2$ <i>, ") for text in texts)


def test_systems_keep_their_colour_and_no_two_are_alike() -> None:
    few = _choose_styles(make_panels([point(system="ddp"), point(system="undertow")]))
    names = ["horovod", "ddp", "undertow", *(f"x{number}" for number in range(9))]
    many = _choose_styles(make_panels([point(system=name) for name in names]))
    for name in ("ddp", "undertow"):
        assert few[name, "measured"]["color"] == many[name, "measured"]["color"]
    assert len({(style["color"], style["marker"]) for style in many.values()}) == len(names)
    assert len({style["color"] for style in many.values()}) == len(_COLOURS)


def test_simulated_beside_measured_is_hollow_and_alone_it_is_not() -> None:
    simulated = [replace(p, origin="simulated") for p in sweep((1.0, 2.0))]
    mixed = _choose_styles(make_panels([*sweep((1.0, 2.0)), *simulated]))
    assert mixed["ddp", "simulated"]["linestyle"] != mixed["ddp", "measured"]["linestyle"]
    assert mixed["ddp", "simulated"]["label"] == "ddp (simulated)"
    alone = _choose_styles(make_panels(simulated))
    assert (alone["ddp", "simulated"]["linestyle"], alone["ddp", "simulated"]["label"]) == ("-", "ddp")


def test_quartiles_on_the_wrong_side_of_the_median_do_not_stop_the_drawing() -> None:
    assert draw_svg([point(iteration_low_s=0.6, iteration_high_s=0.4)])


def read_settings() -> dict[str, object]:
    # Reading the backend chooses one, and imports pyplot for it.
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}


def test_the_users_settings_have_no_effect_and_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = draw_svg([point()])
    monkeypatch.setitem(matplotlib.rcParams, "axes.linewidth", 7.0)
    monkeypatch.setitem(matplotlib.rcParams, "svg.hashsalt", "mine")
    before = read_settings()
    assert draw_svg([point()]) == expected
    assert read_settings() == before
    assert "matplotlib.pyplot" not in sys.modules


def test_a_png_is_written_wide_enough_for_its_panels(tmp_path: Path) -> None:
    def measure(name: str) -> tuple[int, int]:
        data = (tmp_path / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", data[16:24])
        return width, height

    draw_png([point()], tmp_path / "one.png")
    draw_png([point(), point(model="a"), point(model="b")], tmp_path / "three.png")
    assert measure("one.png") == (1080, 660)
    assert measure("three.png") == (1440, 1140)


def test_no_points_and_a_wrong_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no points to draw"):
        draw_svg([])
    with pytest.raises(ConfigError, match=r"nowhere/a\.png: No such file"):
        draw_png([point()], tmp_path / "nowhere" / "a.png")


def test_without_matplotlib_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (draw_svg, lambda points: draw_png(points, tmp_path / "a.png")):
        with pytest.raises(ConfigError, match=r"pip install 'undertow\[pictures\]'"):
            draw([point()])
