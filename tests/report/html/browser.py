"""A real browser without a screen, for what a page does once it is open."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

if TYPE_CHECKING:
    from collections.abc import Iterator

BINARY = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
MISSING = "" if BINARY and DRIVER else "no Chromium with its driver is installed here"

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-prefers-reduced-motion",  # no smooth scrolling under the pointer
    "--window-size=1280,900",
)
_SLOW_S = 60


@contextmanager
def opened_browser() -> Iterator[webdriver.Chrome]:
    """Start Chromium with a profile of its own; close it afterwards."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(BINARY)
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    service = webdriver.ChromeService(str(DRIVER))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=service)
        try:
            yield driver
        finally:
            driver.quit()


def open_page(driver: webdriver.Chrome, path: Path) -> None:
    """Open a page and wait until all of its pictures are drawn."""
    driver.get("about:blank")  # leaves the browser's own first page
    requested(driver)
    driver.get(path.absolute().as_uri())
    drawn = "return 'drawn' in document.documentElement.dataset"
    WebDriverWait(driver, _SLOW_S).until(lambda found: found.execute_script(drawn))


def requested(driver: webdriver.Chrome) -> list[str]:
    """Return the addresses that were asked for since the last call."""
    messages = [
        json.loads(entry["message"])["message"]
        for entry in driver.get_log("performance")
    ]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]


def faults(driver: webdriver.Chrome) -> list[dict[str, Any]]:
    """Return what the console was told since the last call."""
    return list(driver.get_log("browser"))


def marks(driver: webdriver.Chrome) -> dict[str, float]:
    """Return milliseconds from opening the page to each of its marks."""
    found: dict[str, float] = driver.execute_script(
        "return Object.fromEntries(performance.getEntriesByType('mark')"
        ".map(mark => [mark.name, mark.startTime]))"
    )
    return found
