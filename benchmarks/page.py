"""Write the page of a Llama of 405B shape, and open it in Chromium.

    python benchmarks/page.py

Prints the size of the file, the seconds that writing it takes, and milliseconds from
opening it until boxes open (``interactive``) and until all pictures are drawn
(``drawn``), the median of some openings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.capture_405b import llama_on_meta
from partitioner import partition
from partitioner.plan.page import page_document
from partitioner.report.html import html_page
from tests.report.html.browser import marks, open_page, opened_browser

GOAL_BYTES, GOAL_MS = 3_000_000, 1_000


def main() -> int:
    """Run and print; fail where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=126)
    parser.add_argument("--stages", type=int, default=24)
    parser.add_argument("--openings", type=int, default=5)
    options = parser.parse_args()

    plan = partition(
        llama_on_meta(options.layers),
        options.stages,
        example_inputs={"input_ids": torch.zeros(1, 4096, dtype=torch.long)},
        micro_batches=64,
        device="h200",
        dtype="bfloat16",
        replicas=8,
        zero_stage=1,
    )
    document = page_document(plan)
    start = time.perf_counter()
    page = html_page(document)
    written_s = time.perf_counter() - start
    report = {
        "layers": options.layers,
        "bytes": len(page.encode()),
        "written_s": round(written_s, 2),
        **opened(page, options.openings),
    }
    print(json.dumps(report))
    return int(report["bytes"] >= GOAL_BYTES or report["interactive_ms"] >= GOAL_MS)


def opened(page: str, openings: int) -> dict[str, float]:
    """Open a page some times and return the median time of each of its marks."""
    with tempfile.TemporaryDirectory() as folder, opened_browser() as driver:
        path = Path(folder) / "page.html"
        path.write_text(page, encoding="utf-8")
        found = []
        for _ in range(openings):
            open_page(driver, path)
            found.append(marks(driver))
    return {
        f"{name}_ms": round(statistics.median(times[name] for times in found))
        for name in found[0]
    }


if __name__ == "__main__":
    sys.exit(main())
