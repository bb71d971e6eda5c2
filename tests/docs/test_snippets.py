"""Every Python snippet of the documentation runs, in the order of its page."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import traceback
from pathlib import Path

import pytest

from tests.distributed.launch import launch
from tests.docs.blocks import DOCS, blocks, pages
from tests.docs.presupposed import presupposed

WITH_OWN_TEST = {"quickstart"}
PAGES = [
    name for name in pages() if blocks(name, "python") and name not in WITH_OWN_TEST
]
NEEDS_RANKS = (".initialize(", ".pipeline_module(")
ENDS_ITS_GROUP = "lightning"


def trains(page: str) -> bool:
    code = "".join(block.text for block in blocks(page, "python"))
    return any(call in code for call in NEEDS_RANKS)


PLANNING = [page for page in PAGES if not trains(page) and page != ENDS_ITS_GROUP]
TRAINING = [page for page in PAGES if trains(page)]


def run(page: str, folder: Path) -> None:
    """Run a page's snippets one after the other, in one namespace."""
    folder.mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        names = presupposed(page, folder)
        for block in blocks(page, "python"):
            # Lines count from the page's first, so that a traceback points into it.
            code = "\n" * (block.line - 1) + block.text
            exec(compile(code, str(DOCS / f"{page}.md"), "exec"), names)
    if "engine" in names:
        names["engine"].destroy()


def run_all(names: list[str], folder: str) -> dict[str, str]:
    """Run pages on this rank; return what went wrong with which."""
    # Ranks of tests are daemons, which may start no workers that load data.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    for page in names:
        fault = _fault(page, Path(folder) / page)
        if fault:  # the other rank may be waiting in the middle of this page
            return {page: fault}
    return {}


def _fault(page: str, folder: Path) -> str:
    try:
        run(page, folder)
    except Exception:
        return traceback.format_exc()
    return ""


@pytest.mark.parametrize("page", PLANNING)
def test_snippets_that_plan(page: str, tmp_path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        run(page, tmp_path)


@pytest.mark.distributed
@pytest.mark.parametrize(
    "group", [TRAINING, [ENDS_ITS_GROUP]], ids=["all", "lightning"]
)
def test_snippets_that_train_on_two_ranks(group: list[str], tmp_path: Path) -> None:
    """One launch for all: importing libraries takes longer than the snippets."""
    for faults in launch(2, run_all, group, str(tmp_path), timeout_s=250):
        assert not faults, "\n".join(faults.values())


def test_there_are_snippets() -> None:
    assert len(PLANNING) >= 7
    assert len(TRAINING) >= 10
    assert ENDS_ITS_GROUP in PAGES
