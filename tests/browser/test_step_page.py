"""The page of `undertow report` in a real browser: it loads, zooms, sorts, and agrees with the trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.chromium import PHONE, WIDE, Browser
from tests.support.timeline_samples import Event, Job, make_trace, spans, write_trace
from undertow.observe.report.step_page import make_step_page
from undertow.observe.timeline.analysis import study
from undertow.observe.timeline.trace_reader import read_trace

JOB = Job(ranks=4, steps=12, layers=6, has_plan=True, has_gates=False, size_bytes=1_500_000, jitter=0.3)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_page(tmp_path_factory.mktemp("trace"), JOB)


def make_page(folder: Path, job: Job) -> Path:
    trace = read_trace(write_trace(folder, make_trace(job)))
    assert trace is not None
    path = folder / "report.html"
    path.write_text(make_step_page(study(trace)))
    return path


def read_window(browser: Browser) -> tuple[float, float, float]:
    """Return the visible part of the step: begin, end and total in milliseconds."""
    found = re.fullmatch(r"([\d.]+) to ([\d.]+) ms of ([\d.]+) ms", browser.find("#window").text)
    assert found is not None
    return float(found[1]), float(found[2]), float(found[3])


def see(browser: Browser) -> str:
    """Return the picture that is drawn."""
    return str(browser.run("return document.querySelector('canvas').toDataURL()"))


def count_inks(browser: Browser) -> int:
    return int(
        browser.run(
            """const canvas = document.querySelector('canvas');
            const seen = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(seen.buffer)).size"""
        )
    )


@pytest.mark.parametrize("size", [WIDE, PHONE])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_loads_and_fits(browser: Browser, page: Path, size: tuple[int, int], dark: bool) -> None:
    browser.open(page, size=size, dark=dark)
    assert browser.complaints() == []
    assert browser.run("return document.documentElement.scrollWidth") <= size[0]
    assert count_inks(browser) > 8
    begin, end, whole = read_window(browser)
    assert (begin, end) == (0, whole)


def test_only_the_page_itself_is_loaded(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


def test_dark_mode_is_dark(browser: Browser, page: Path) -> None:
    lightness = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        paper = browser.run("return getComputedStyle(document.body).backgroundColor")
        lightness.append(sum(map(int, re.findall(r"\d+", paper)[:3])))
        corner = browser.run(
            "return [...document.querySelector('canvas').getContext('2d').getImageData(2, 2, 1, 1).data]"
        )
        assert sum(corner[:3]) == lightness[-1]
    assert lightness[0] > 700 > 100 > lightness[1]


def test_the_picture_follows_a_change_to_dark_mode(browser: Browser, page: Path) -> None:
    browser.open(page)
    before = see(browser)
    browser.prefer({"prefers-color-scheme": "dark"})
    browser.wait_until(f"document.querySelector('canvas').toDataURL().length && {_differs(before)}")


def _differs(before: str) -> str:
    return f"document.querySelector('canvas').toDataURL() != '{before}'"


# Zoom


def test_buttons_zoom_and_move(browser: Browser, page: Path) -> None:
    browser.open(page)
    before = see(browser)
    browser.find("#closer").click()
    browser.find("#closer").click()
    begin, end, whole = read_window(browser)
    assert end - begin == pytest.approx(whole / 4, abs=0.05)
    assert see(browser) != before
    browser.find("#later").click()
    moved = read_window(browser)
    assert moved[0] > begin
    assert moved[1] - moved[0] == pytest.approx(end - begin, abs=0.05)
    browser.find("#earlier").click()
    assert read_window(browser)[0] == pytest.approx(begin, abs=0.05)
    browser.find("#wider").click()
    assert read_window(browser)[1] - read_window(browser)[0] == pytest.approx(whole / 2, abs=0.05)
    browser.find("#all").click()
    assert see(browser) == before


def test_keys_zoom_and_move(browser: Browser, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(page)
    browser.run("document.getElementById('timeline').focus()")
    browser.press("+", "+", "+")
    begin, end, whole = read_window(browser)
    assert end - begin == pytest.approx(whole / 8, abs=0.05)
    browser.press(Keys.ARROW_RIGHT)
    assert read_window(browser)[0] == pytest.approx(begin + (end - begin) / 4, abs=0.05)
    browser.press(Keys.HOME)
    assert read_window(browser)[0] == 0
    browser.press("-")
    assert read_window(browser)[1] == pytest.approx(whole / 4, abs=0.05)
    browser.press("0")
    assert read_window(browser)[:2] == (0, whole)


def test_marks_are_described_by_keyboard(browser: Browser, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(page)
    browser.run("document.getElementById('timeline').focus()")
    browser.press("n")
    first = browser.find("#details").text
    assert re.fullmatch(r"rank 0, training thread: .+; [\d.]+ ms, from 0.000 ms", first)
    assert browser.find("#details").get_attribute("aria-live") == "polite"
    browser.press("n")
    assert re.fullmatch(r"rank 0, training thread: .+; [\d.]+ ms, from (?!0.000).+ ms", browser.find("#details").text)
    browser.press("p")
    assert browser.find("#details").text == first
    browser.press(Keys.ARROW_DOWN)
    text = browser.find("#details").text
    assert text.startswith("rank 0, wire out: ")
    assert re.search(r"(contribution|result): layer\d.weight to rank \d, 1.50 MB; ", text)


def test_marks_are_described_under_the_pointer(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.getElementById('timeline').scrollIntoView()")
    box = browser.run("const b = document.querySelector('canvas').getBoundingClientRect(); return [b.left, b.top]")
    point(browser, "mouseMoved", box[0] + 125, box[1] + 35)
    assert browser.find("#details").text.startswith("rank 0, training thread: ")


def point(browser: Browser, kind: str, x: float, y: float, **more: Any) -> None:
    browser.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


def test_wheel_and_drag(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.getElementById('timeline').scrollIntoView()")
    box = browser.run("const b = document.querySelector('canvas').getBoundingClientRect(); return [b.left, b.top]")
    x, y = box[0] + 600, box[1] + 40
    control = 2
    for _ in range(5):
        point(browser, "mouseWheel", x, y, deltaX=0, deltaY=-50, modifiers=control)
    begin, end, whole = read_window(browser)
    assert end - begin < whole / 3
    button = {"button": "left", "buttons": 1, "clickCount": 1}
    point(browser, "mousePressed", x, y, **button)
    point(browser, "mouseMoved", x - 100, y, **button)
    point(browser, "mouseReleased", x - 100, y, button="left", clickCount=1)
    assert read_window(browser)[0] > begin


def test_two_fingers_zoom_on_a_phone(browser: Browser, page: Path) -> None:
    browser.open(page, size=PHONE)
    browser.run("document.getElementById('timeline').scrollIntoView()")
    box = browser.run("const b = document.querySelector('canvas').getBoundingClientRect(); return [b.left, b.top]")
    y = box[1] + 40

    def touch(kind: str, *places: float) -> None:
        points = [{"x": x, "y": y, "id": number} for number, x in enumerate(places)]
        browser.command("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    touch("touchStart", 180, 220)
    touch("touchMove", 170, 230)
    touch("touchMove", 120, 280)
    touch("touchEnd")
    begin, end, whole = read_window(browser)
    assert end - begin < whole / 2


def test_another_step_can_be_chosen(browser: Browser, page: Path) -> None:
    browser.open(page)
    before, (_, _, whole) = see(browser), read_window(browser)
    options = [option.text for option in browser.find_all("#step option")]
    assert [text.partition(", ")[2] for text in options] == ["the median", "the fastest", "the slowest"]
    browser.run("const s = document.getElementById('step'); s.value = '2'; s.dispatchEvent(new Event('change'))")
    assert see(browser) != before
    assert read_window(browser)[2] != whole


# Tables


def read_values(browser: Browser, table: str, column: int) -> list[str]:
    script = """return [...document.getElementById(arguments[0]).tBodies[0].rows].map(
        row => row.cells[arguments[1]].dataset.value ?? row.cells[arguments[1]].textContent)"""
    return [str(value) for value in browser.run(script, table, column)]


@pytest.mark.parametrize(("table", "column"), [("tensors", 8), ("ranks", 3), ("path", 1), ("uses", 1)])
def test_numbers_sort_in_both_directions(browser: Browser, page: Path, table: str, column: int) -> None:
    browser.open(page)
    button = browser.find_all(f"#{table} th button")[column]
    values = sorted(map(float, read_values(browser, table, column)))
    assert len(set(values)) > 1
    for way, expected in (("descending", values[::-1]), ("ascending", values)):
        button.click()
        assert [float(value) for value in read_values(browser, table, column)] == expected
        assert browser.find_all(f"#{table} th")[column].get_attribute("aria-sort") == way
    assert len(browser.find_all(f"#{table} th[aria-sort]")) == 1


def test_words_sort_from_a_by_keyboard(browser: Browser, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(page)
    names = [f"layer{number}.weight" for number in range(JOB.layers)]
    browser.run("document.querySelector('#tensors th button').focus()")
    browser.press(Keys.ENTER)
    assert [name for name in read_values(browser, "tensors", 0) if name in names] == names
    browser.press(Keys.ENTER)
    assert [name for name in read_values(browser, "tensors", 0) if name in names] == names[::-1]


# Contents


def test_the_summary_agrees_with_the_trace(browser: Browser, page: Path) -> None:
    """The figures are added up again here, from the events as they were written."""
    traces = make_trace(JOB)
    browser.open(page)
    said = browser.find(".lead").text
    whole = sum_up(traces, "step")
    parts = {cat: 100 * sum_up(traces, cat) / whole for cat in ("wait", "hook", "apply", "optimizer")}
    compute = 100 - sum(parts.values())
    assert said.startswith(f"{compute:.0f} % of the step is compute, {parts['wait']:.0f} % is exposed waiting")
    sent = sum(event["args"]["bytes"] for event in list_counted(traces, "wire-out"))
    others = " ".join(item.text for item in browser.find_all(".summary li"))
    assert f"each worker sends {sent / JOB.ranks / (JOB.steps - 1) / 1e6:.3g} MB per step" in others


def sum_up(traces: dict[int, list[Event]], cat: str) -> float:
    return float(sum(event["dur"] for event in list_counted(traces, cat)))


def list_counted(traces: dict[int, list[Event]], cat: str) -> list[Event]:
    """Return the steps that count: all but the first, because the plan was made before."""
    return [event for events in traces.values() for event in spans(events, cat) if event["args"]["step"] > 1]


def test_a_page_without_steps_has_no_errors(browser: Browser, tmp_path: Path) -> None:
    traces = make_trace(Job(steps=3))
    kept = {rank: [event for event in events if event.get("cat") != "step"] for rank, events in traces.items()}
    trace = read_trace(write_trace(tmp_path, kept))
    assert trace is not None
    path = tmp_path / "report.html"
    path.write_text(make_step_page(study(trace)))
    browser.open(path, size=PHONE)
    assert "No step was recorded completely by all ranks" in browser.find(".lead").text
    assert browser.run("return document.documentElement.scrollWidth") <= PHONE[0]


def test_every_control_has_a_name(browser: Browser, page: Path) -> None:
    browser.open(page)
    nameless = browser.run(
        """return [...document.querySelectorAll('button, select, [tabindex="0"], svg[role=img]')].filter(e =>
        !e.textContent.trim() && !e.getAttribute('aria-label') && !e.labels?.length).map(e => e.outerHTML)"""
    )
    assert nameless == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_enough_contrast(browser: Browser, page: Path, dark: bool) -> None:
    """The contrast is at least 4.5 to 1, as WCAG requires."""
    browser.open(page, dark=dark)
    for name in ("--ink", "--quiet", "--warn"):
        ink, paper = (
            browser.run("return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()", one)
            for one in (name, "--paper")
        )
        assert contrast(ink, paper) >= 4.5, name


def contrast(one: str, other: str) -> float:
    def shine(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((shine(one), shine(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
