"""A run over gloo is recorded as it went, and its slow stage gets less to do."""

from __future__ import annotations

import functools
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from partitioner import RuntimeGuardError
from partitioner.runtime.host_group import HostGroup
from partitioner.runtime.timeline.clock import clock_offsets_s
from partitioner.runtime.timeline.recorder import MODULES_EVERY
from partitioner.timeline import Trace, usage
from tests.distributed.engines import QUIET, adamw
from tests.distributed.launch import launch
from tests.distributed.sleeping import LAYERS, Run, plan_of, record
from tests.distributed.tied_model import (
    MICRO_BATCHES,
    loss_of,
    make_model,
    micro_batches,
)

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

STEPS = 2
SLOW = Run(ranks=3, micro_batches=6, slow=range(8, 16), factor=4.0, steps=STEPS)
ONE = Run(ranks=2, micro_batches=1, steps=STEPS)
DUAL = Run(ranks=2, micro_batches=4, schedule="dualpipev", steps=STEPS)


@functools.cache
def traces(run: Run) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        launch(run.ranks, record, run, Path(folder), timeout_s=200)
        return {
            name: json.loads((Path(folder) / f"{name}.json").read_text())
            for name in ("before", "after")
        }


def loaded(content: dict[str, Any], path: Path) -> Trace:
    path.write_text(json.dumps(content))
    return Trace.load(path)


@pytest.mark.parametrize("run", [SLOW, ONE, DUAL], ids=["1f1b", "one", "dualpipev"])
def test_every_pass_and_message_is_there_once(run: Run, tmp_path: Path):
    trace = loaded(traces(run)["before"], tmp_path / "trace.json")
    stages = trace.about.stages
    assert stages == run.ranks * (2 if run.schedule == "dualpipev" else 1)
    found = Counter((i.kind, i.stage, i.step, i.micro_batch) for i in trace.intervals)
    steps = sorted({each.step for each in trace.intervals})
    assert len(steps) == STEPS
    for step in steps:
        for stage in range(stages):
            for number in range(run.micro_batches):
                for kind in ("forward", "backward"):
                    assert found[kind, stage, step, number] == 1
    calls = [each for each in trace.intervals if each.kind == "module"]
    modules = Counter((each.name, each.step, each.micro_batch) for each in calls)
    timed = range(min(1, run.micro_batches - 1), run.micro_batches, MODULES_EVERY)
    assert set(modules.values()) == {1}
    assert len(modules) == LAYERS * STEPS * len(timed)
    assert {each.micro_batch for each in calls} == set(timed)
    assert {i.rank for i in trace.intervals if i.kind == "optimizer step"} == set(
        range(run.ranks)
    )


@pytest.mark.parametrize("run", [SLOW, DUAL], ids=["1f1b", "dualpipev"])
def test_a_stage_begins_after_the_one_before_has_ended(run: Run, tmp_path: Path):
    trace = loaded(traces(run)["before"], tmp_path / "trace.json")
    passes = {
        (i.kind, i.stage, i.step, i.micro_batch): i
        for i in trace.intervals
        if i.kind in ("forward", "backward")
    }
    for (kind, stage, step, number), each in passes.items():
        before = stage - 1 if kind == "forward" else stage + 1
        earlier = passes.get((kind, before, step, number))
        if earlier is not None:
            assert earlier.end_s <= each.start_s + 1e-3  # of two clocks
        if kind == "backward":
            assert passes["forward", stage, step, number].end_s <= each.start_s


def test_the_slow_stage_is_found_and_relieved(tmp_path: Path):
    found = {
        name: usage(loaded(content, tmp_path / f"{name}.json"))
        for name, content in traces(SLOW).items()
    }
    before, after = found["before"], found["after"]
    assert before.slowest.stage == 1
    assert before.uneven
    assert max(before.ranks[0].waits_s, key=lambda s: before.ranks[0].waits_s[s]) == 1
    counts = [len(stage.modules_s) for stage in before.stages]
    assert counts == [8, 8, 8]
    assert len(after.stages[1].modules_s) < 8
    assert after.bubble_share < before.bubble_share


def test_what_was_planned_is_in_the_same_file():
    events = traces(SLOW)["before"]["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    ranks = range(SLOW.ranks)
    assert names == [
        *(f"rank {rank}: stage {rank}" for rank in ranks),
        *(f"rank {rank} (predicted)" for rank in ranks),
    ]


def ahead() -> tuple[list[float], str]:
    """Let rank 1's clock go 5 s ahead; then record nothing."""
    real = time.perf_counter
    if dist.get_rank() == 1:
        time.perf_counter = lambda: real() + 5.0
    try:
        offsets_s = clock_offsets_s(HostGroup().group)
    finally:
        time.perf_counter = real
    plan = plan_of(Run(ranks=2, micro_batches=2))
    engine, *_ = plan.initialize(loss_of, config=QUIET, optimizer=adamw)
    try:
        with plan.trace(engine, "never.json"):
            pass
    except RuntimeGuardError as error:
        return offsets_s, str(error)
    return offsets_s, ""


def test_clocks_are_aligned_and_an_empty_recording_is_refused_on_all():
    for offsets_s, said in launch(2, ahead):
        assert offsets_s[0] == 0
        assert offsets_s[1] == pytest.approx(-5.0, abs=0.05)
        assert "no training step was taken" in said


def recompute(folder: Path) -> list[float]:
    """Train with everything recomputed, with and without a recorder."""
    from partitioner import partition

    plan = partition(
        make_model(),
        2,
        example_inputs=torch.zeros(3, 5, dtype=torch.int64),
        micro_batches=MICRO_BATCHES,
        device="cpu",
        checkpointing="all",
    )
    losses = []
    for traced in (False, True):
        plan.graph.model.load_state_dict(make_model().state_dict())
        engine, *_ = plan.initialize(loss_of, config=QUIET, optimizer=adamw)
        first, *others = micro_batches(0)
        losses.append(engine.train_batch(iter(first)).item())
        if traced:
            with plan.trace(engine, folder / "trace.json"):
                losses += [engine.train_batch(iter(b)).item() for b in others]
                engine.eval_batch(iter(first))
        else:
            losses += [engine.train_batch(iter(b)).item() for b in others]
        engine.destroy()
    return losses


def test_recomputation_lies_within_backward_and_recording_changes_nothing(
    tmp_path: Path,
):
    for losses in launch(2, recompute, tmp_path):
        half = len(losses) // 2
        assert losses[:half] == losses[half:]
    trace = Trace.load(tmp_path / "trace.json")
    spans = {
        (i.rank, i.step, i.micro_batch): i
        for i in trace.intervals
        if i.kind == "backward"
    }
    again = [each for each in trace.intervals if each.kind == "recompute"]
    assert len(again) >= len(spans)
    for each in again:
        around = spans[each.rank, each.step, each.micro_batch]
        assert around.start_s <= each.start_s <= each.end_s <= around.end_s
    assert all(stage.recompute_s > 0 for stage in usage(trace).stages)
