"""The browser for tests: it shows a page, can be controlled, and collects the errors of a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import chromium
from tests.support.chromium import PHONE, Browser

PAGE = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>t</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">
<style>body { color: rgb(1, 2, 3) } @media (prefers-color-scheme: dark) { body { color: rgb(4, 5, 6) } }</style>
<body><button onclick="this.textContent = 'pressed'">press</button>"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.html"
    path.write_text(PAGE)
    return path


def test_a_page_is_shown_and_can_be_used(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.find("button").click()
    browser.wait_until("document.querySelector('button').textContent == 'pressed'")
    assert browser.run("return innerWidth") == 1280


def test_a_phone_in_dark_mode(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.open(page, size=PHONE, dark=True)
    assert browser.run("return innerWidth") == 390
    assert browser.run("return getComputedStyle(document.body).color") == "rgb(4, 5, 6)"
    browser.photograph(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("trouble", ["throw Error('broken')", "console.error('broken')", "console.warn('broken')"])
def test_errors_of_a_page_are_collected(browser: Browser, tmp_path: Path, trouble: str) -> None:
    path = tmp_path / "broken.html"
    path.write_text(f"{PAGE}<script>{trouble}</script>")
    browser.open(path)
    (complaint,) = browser.complaints()
    assert "broken" in complaint
    assert browser.complaints() == []


@pytest.mark.parametrize("absent", [("CHROMIUM",), ("DRIVER",), ("CHROMIUM", "DRIVER")])
def test_without_a_browser_tests_are_skipped_or_fail_if_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, absent: tuple[str, ...]
) -> None:
    for name in ("CHROMIUM", "DRIVER"):
        path = tmp_path / name.lower()
        if name not in absent:
            path.touch()
        monkeypatch.setattr(chromium, name, path)
    paths = " and ".join(str(tmp_path / name.lower()) for name in absent)
    reason = re.escape(f"{paths} not there: apt install chromium chromium-driver")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=reason):
        chromium.check_installed()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=reason):
        chromium.check_installed()
