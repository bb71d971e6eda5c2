"""A model on ``meta`` is planned without a byte of its weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "plan_on_meta.py"
LIMIT_GIB = 2.0
EIGHT_BILLION = 8e9


def test_a_llama_of_8b_size_is_planned_in_little_memory():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--layers", "32", "--stages", "8"],
        check=True,
        capture_output=True,
        text=True,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["parameters"] > EIGHT_BILLION
    assert report["on_meta"]
    assert report["peak_rss_gib"] < LIMIT_GIB
    assert report["gap"] <= 0.01
