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


def contrasts(driver: webdriver.Chrome) -> list[tuple[float, str]]:
    """Return the contrast of every visible piece of text, with the text's element.

    As WCAG 2 reckons it: between the text and all that lies behind it.
    """
    return [tuple(found) for found in driver.execute_script(_CONTRASTS)]


_CONTRASTS = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});

function linear(part) {
  const x = part / 255;
  return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
}

function luminance(layers) {
  for (const colour of layers) {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
  }
  const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function behind(element) {
  if (!element) return ["white"];
  const own = getComputedStyle(element).backgroundColor;
  return [...behind(element.parentElement), own];
}

function contrast(element) {
  const layers = behind(element);
  const ground = luminance(layers);
  const text = luminance([...layers, getComputedStyle(element).color]);
  return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
}

const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
return [...document.querySelectorAll("main *")]
  .filter((element) => element.offsetParent && !element.closest(".chart, .hidden"))
  .filter((element) => [...element.childNodes].some(isText))
  .map((element) => [contrast(element), element.outerHTML.slice(0, 90)]);
"""
