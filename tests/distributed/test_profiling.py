"""torch.profiler over a pipeline: every module's time is under its own path."""

from __future__ import annotations

import functools
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from partitioner.runtime.profiling import StepProfile
from tests.distributed.launch import launch
from tests.distributed.profiled import LAYERS, MICRO_BATCHES, SLOW, STEPS, profiled

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

PASSES = STEPS * MICRO_BATCHES
SLOW_PATH = f"{SLOW}.inner"


@functools.cache
def found() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return what both ranks found, and the traces they wrote."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = launch(2, profiled, Path(folder) / "new", timeout_s=200)
        files = {p.name: json.loads(p.read_text()) for p in Path(folder).glob("new/*")}
    return ranks, files


def profile_of(name: str) -> StepProfile:
    profile: StepProfile = found()[0][0][name]
    return profile


def test_the_slow_module_is_found_forward_and_backward():
    ranks, _ = found()
    profile = profile_of("plain")
    assert profile.modules == ranks[1]["plain"].modules
    assert profile.steps == STEPS
    slowest = max(profile.modules, key=lambda each: each.total_s)
    assert slowest.path == SLOW_PATH
    rows = {each.path: each for each in profile.modules}
    for number in range(LAYERS):
        row = rows[f"{number}.inner"]
        clocked = ranks[row.stage]["clocked"]
        assert row.calls == 1
        for phase, took_s in (("forward", row.forward_s), ("backward", row.backward_s)):
            direct_s = clocked[str(number), phase] / PASSES
            assert direct_s <= took_s <= 1.1 * direct_s + 1e-3


def test_shares_are_those_of_the_clock():
    ranks, _ = found()
    profile = profile_of("plain")
    for stage in range(2):
        rows = profile.stage(stage)
        assert sum(each.share for each in rows) == pytest.approx(1)
        slept = {each.path: each for each in rows if each.path.endswith(".inner")}
        clocked = ranks[stage]["clocked"]
        whole_s = sum(clocked.values())
        for path, each in slept.items():
            name = path.partition(".")[0]
            direct_s = sum(clocked[name, phase] for phase in ("forward", "backward"))
            of_sleep = each.share / sum(row.share for row in slept.values())
            assert of_sleep == pytest.approx(direct_s / whole_s, rel=0.1)


def test_recomputation_is_apart_and_lost_nowhere():
    ranks, _ = found()
    rows = {each.path: each for each in profile_of("again").modules}
    for number in range(LAYERS):
        row = rows[f"{number}.inner"]
        clocked = ranks[row.stage]["clocked again"]
        assert row.calls == 1
        forward_s = row.forward_s + row.recompute_s
        for phase, took_s in (("forward", forward_s), ("backward", row.backward_s)):
            direct_s = clocked[str(number), phase] / MICRO_BATCHES
            assert direct_s <= took_s <= 1.1 * direct_s + 1e-3
    again = [row for path, row in rows.items() if path.endswith("inner")]
    assert any(row.recompute_s > row.forward_s / 2 for row in again)
    assert not any(row.recompute_s for row in profile_of("plain").modules)


def test_both_stages_of_a_rank_have_their_own_modules():
    profile = profile_of("dual")
    paths = [
        {each.path for each in profile.stage(stage) if each.path.endswith(".inner")}
        for stage in range(4)
    ]
    assert all(paths)
    assert sum(map(len, paths)) == len(set().union(*paths)) == LAYERS


def test_weight_gradients_that_were_put_off_have_a_row():
    rows = [each for each in profile_of("put off").stage(1) if "put off" in each.path]
    assert len(rows) == 1
    assert rows[0].backward_s > 0
    assert not any("put off" in each.path for each in profile_of("plain").modules)


def test_nothing_stays_behind():
    for rank in found()[0]:
        assert rank["left"] == []
        before, after = rank["hooks"]
        assert before == after
        assert rank["kept"]  # what puts weight gradients off is still in place


def test_the_table_shows_the_slow_module_first():
    text = io.StringIO()
    Console(file=text, width=80).print(profile_of("plain").table())
    rows = [line for line in text.getvalue().splitlines() if line.strip()]
    assert "2 profiled steps" in rows[0]
    slow = next(each for each in profile_of("plain").modules if SLOW_PATH in each.path)
    stage = [line for line in rows[3:] if line.split()[0] == str(slow.stage)]
    assert SLOW_PATH in stage[0]
    assert "(1 others)" not in text.getvalue()


def test_every_rank_writes_its_trace():
    _, files = found()
    assert sorted(files) == ["rank0.json", "rank1.json"]
    for content in files.values():
        names = {each.get("name") for each in content["traceEvents"]}
        assert any("forward: " in str(name) for name in names)


def test_errors_say_what_to_do():
    for rank in found()[0]:
        number, steps, no_folder = rank["errors"]
        assert "active=0" in number
        assert "2 training steps were taken" in steps
        assert "call engine.train_batch 3 times" in steps
        assert "writing the profiler's traces failed on rank 0 (2 of 2" in no_folder
        assert "rank0.json could not be written" in no_folder
