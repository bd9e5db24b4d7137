"""The live page in a real browser: it follows the job, shows a lost connection, and never treats text as markup."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.chromium import PHONE, WIDE, Browser
from tests.support.live_samples import make_job_state, make_report, make_snapshot
from undertow.observe.live.web import WebDisplay
from undertow.observe.meter.status_report import Activity


@pytest.fixture
def web() -> Iterator[WebDisplay]:
    web = WebDisplay(0, make_snapshot(4))
    web.start()
    yield web
    web.release()


def open_page(browser: Browser, web: WebDisplay, size: tuple[int, int] = WIDE, *, dark: bool = False) -> None:
    browser.open(f"http://127.0.0.1:{web.server_port}/", size=size, dark=dark)
    wait_for_text(browser, "link", "live")


def wait_for_text(browser: Browser, name: str, text: str) -> None:
    browser.wait_until(f"document.getElementById('{name}').textContent.includes({text!r})")


def end(web: WebDisplay, verdict: str) -> None:
    job = make_job_state(4)
    job.end_job(verdict)
    web.finish(job.take_snapshot(200.0))


def test_figures_change_and_the_page_shows_the_end_of_the_job(browser: Browser, web: WebDisplay) -> None:
    open_page(browser, web)
    assert browser.driver.title == "train.py: step 1240"
    assert [browser.find(f"#{name}").text for name in ("steps", "waits", "out", "layer")] == [
        "1240",
        "9 %",
        "93 MB/s out",
        "31 ms",
    ]
    assert [row.text for row in browser.find_all("#ranks td:first-child")] == ["0", "1", "2", "3"]
    job = make_job_state(4)
    job.add_report(make_report(2, 2, steps=1250, steps_per_s=9.0), 100.0)
    job.add_history_point()
    job.lines.feed(1, b"loss 0.5\n")
    web.show(job.take_snapshot(101.0))
    wait_for_text(browser, "steps", "1250")
    assert browser.find("#lines").text == "loss 0.5"
    assert browser.find("#speeds polyline").get_attribute("points") != ""
    end(web, "done")
    wait_for_text(browser, "link", "the job has ended: done")
    assert browser.run("return events.readyState") == 2  # closed, without reconnecting


def test_a_lost_connection_is_shown_and_restored(browser: Browser) -> None:
    first = WebDisplay(0, make_snapshot(4))
    first.start()
    open_page(browser, first)
    first.latest.set(make_snapshot(4), is_last=True)  # the stream ends without a verdict
    first.release()
    wait_for_text(browser, "link", "connection lost, reconnecting")
    assert browser.run("return document.body.classList.contains('stale')")
    second = WebDisplay(first.server_port, make_snapshot(4, steps=2000))
    second.start()
    try:
        wait_for_text(browser, "link", "live")
        wait_for_text(browser, "steps", "2000")
        assert not browser.run("return document.body.classList.contains('stale')")
    finally:
        second.release()
    assert all("ERR_" in complaint for complaint in browser.complaints())  # only failed connections


def test_a_failed_job_is_shown(browser: Browser, web: WebDisplay) -> None:
    open_page(browser, web)
    end(web, "rank 1 (host b) failed first: exit code 3")
    wait_for_text(browser, "link", "the job has ended: rank 1 (host b) failed first: exit code 3")
    assert browser.run("return document.getElementById('link').dataset.state") == "failed"


def test_text_of_workers_is_never_markup(browser: Browser, web: WebDisplay) -> None:
    trap = "<img src=x onerror=\"document.title='caught'\"><script>document.title='caught'</script>"
    job = make_job_state(1, layer=trap, waits_for=trap, state=Activity.WAITING, stands_for=trap)
    job.lines.feed(1, trap.encode() + b"\n")
    web.show(job.take_snapshot(101.0))
    open_page(browser, web)
    wait_for_text(browser, "lines", "<img")
    assert browser.find_all("main img, main script") == []
    assert browser.driver.title == "train.py: step 1240"


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_overflows_and_alarms_are_visible(
    browser: Browser, web: WebDisplay, size: tuple[int, int], dark: bool
) -> None:
    job = make_job_state(8, layer="features.denseblock4.layer32.conv2", waits_for="features.conv0.weight")
    job.end_rank(3, "killed by SIGKILL; out of memory?")
    job.lines.feed(1, b"x" * 400 + b"\n")
    web.show(job.take_snapshot(101.0))
    open_page(browser, web, size, dark=dark)
    browser.wait_until("document.querySelectorAll('#ranks tr').length == 8")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.find("tr.alarming").text.startswith("3 node3 ended: killed by SIGKILL")
    paper, ink = browser.run("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")
    assert (paper, ink) == (
        ("rgb(21, 24, 28)", "rgb(230, 232, 235)") if dark else ("rgb(255, 255, 255)", "rgb(27, 31, 36)")
    )


def test_scrolling_boxes_have_focus_and_the_state_is_announced(browser: Browser, web: WebDisplay) -> None:
    job = make_job_state(2)
    job.lines.feed(1, b"loss 0.5\n")
    web.show(job.take_snapshot(101.0))
    open_page(browser, web, PHONE)
    wait_for_text(browser, "lines", "loss")
    reached = []
    for _ in range(2):
        browser.press("\ue004")  # Tab
        reached.append(browser.run("return document.activeElement.getAttribute('aria-labelledby')"))
    assert reached == ["ranks-title", "output-title"]
    assert browser.find("#link").get_attribute("role") == "status"
    assert "8.3 steps/s" in str(browser.find("#speeds").get_attribute("aria-label"))
