"""Takes the pictures of a page that the documentation shows.

    partitioner inspect examples/llama_8b.py --stages 4 --device h100 --dtype bfloat16 \
        --html /tmp/page.html
    python -m tests.report.html.pictures /tmp/page.html docs/pictures
"""

from __future__ import annotations

import base64
import io
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from tests.report.html.browser import open_page, opened_browser

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

WIDTH = 1280
SCALE = 1.4
COLOURS = 200
"""Few colours make small files, and a page has few."""
PARTS = {
    "report": ("header.top", "#stages .chart", "light"),
    "report-model": ("#graph", "#graph .flow .flow .row:nth-child(5)", "light"),
    "report-step": ("#timeline", "#comparison .chart", "dark"),
}
"""Name of a picture → first and last element that it shows, and the colours."""


def main() -> None:
    """Open the page and write every picture."""
    page, folder = (Path(argument) for argument in sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    with opened_browser() as driver:
        size = {"width": WIDTH, "height": 900, "deviceScaleFactor": SCALE}
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {**size, "mobile": False}
        )
        open_page(driver, page)
        for name, (first, last, colours) in PARTS.items():
            driver.execute_script(
                "document.documentElement.dataset.theme = arguments[0]", colours
            )
            time.sleep(1)  # the lines between boxes follow their sizes
            path = folder / f"{name}.png"
            _write(_taken(driver, first, last), path)
            print(f"{path}: {path.stat().st_size:,} bytes")  # noqa: T201


def _taken(driver: Chrome, first: str, last: str) -> bytes:
    """Photograph the page from the top of one element to the bottom of another."""
    ends: list[float] = driver.execute_script(
        "return arguments[0]"
        ".map(found => document.querySelector(found).getBoundingClientRect())"
        ".map((at, end) => (end ? at.bottom : at.top) + scrollY)",
        [first, last],
    )
    clip: dict[str, Any] = {"x": 0, "width": WIDTH, "scale": 1}
    clip |= {"y": ends[0] - 8, "height": ends[1] - ends[0] + 16}
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
    )
    return base64.b64decode(shot["data"])


def _write(picture: bytes, path: Path) -> None:
    found = Image.open(io.BytesIO(picture)).convert("RGB")
    found.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
