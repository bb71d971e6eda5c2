"""Settings that hold for every test: one thread, CPU DeepSpeed, grouped pipelines."""

from __future__ import annotations

import os

# Before anything imports torch or DeepSpeed: both read these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Send all tests that start process groups to one xdist worker, one at a time."""
    for item in items:
        if item.get_closest_marker("distributed"):
            item.add_marker(pytest.mark.xdist_group("distributed"))
