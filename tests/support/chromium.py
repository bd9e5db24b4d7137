"""A real browser for tests of pages: Debian's Chromium without a window, driven through selenium.

The fixture `browser` (in tests/conftest.py, for all tests) is this class.  Chromium starts once for all tests, and only
if one of them asks for it.  Whatever a page complains about in the console fails the test that opened it.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE, PHONE = (1280, 900), (390, 844)
HANG_S = 30.0  # nothing here takes this long; it only keeps a hang from blocking everybody


class Browser:
    """One window.  `driver` is selenium's own, for what is not here."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._complaints: list[str] = []

    def open(self, page: Path | str, *, size: tuple[int, int] = WIDE, dark: bool = False) -> None:
        """A file or an address, in a window of this many pixels."""
        width, height = size
        is_phone = size == PHONE
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        self.command("Emulation.setTouchEmulationEnabled", enabled=is_phone)
        self.prefer({"prefers-color-scheme": "dark" if dark else "light"})
        self.driver.get(page.resolve().as_uri() if isinstance(page, Path) else page)

    def prefer(self, media: dict[str, str]) -> None:
        """What the reader has chosen, such as prefers-color-scheme or prefers-reduced-motion."""
        self.command("Emulation.setEmulatedMedia", features=[{"name": n, "value": v} for n, v in media.items()])

    def command(self, name: str, **parameters: Any) -> Any:
        """One of Chromium's own (DevTools protocol)."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def run(self, script: str, *arguments: object) -> Any:
        """What this script returns in the page."""
        return self.driver.execute_script(script, *arguments)

    def wait_until(self, expression: str) -> None:
        """Until this is true in the page."""
        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.driver, HANG_S, poll_frequency=0.02)
        wait.until(lambda driver: driver.execute_script(f"return Boolean({expression})"), message=expression)

    def find(self, selector: str) -> Any:
        """The first element of this CSS selector."""
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def press(self, *keys: str) -> None:
        """Keys, as for whatever has the focus; see selenium's `Keys`."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def complaints(self) -> list[str]:
        """What the page wrote to the console as a warning or an error.  Asked once, it no longer fails the test."""
        found, self._complaints = [*self._complaints, *self._read_console()], []
        return found

    def photograph(self, path: Path, *, whole: bool = True) -> None:
        """The page as a PNG, down to its end or as much as the window shows."""
        shot = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _read_console(self) -> list[str]:
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]


def check_installed() -> None:
    """Skips the test where there is no browser; on the machine that decides about a change it fails instead."""
    absent = [str(path) for path in (CHROMIUM, DRIVER) if not path.exists()]
    if not absent:
        return
    reason = f"{' and '.join(absent)} not there: apt install chromium chromium-driver"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def open_chromium(profile: Path) -> Iterator[Browser]:
    """Chromium with a fresh profile; nothing of it is left afterwards."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "WARNING"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=str(DRIVER)))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
