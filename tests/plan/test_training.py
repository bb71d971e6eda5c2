"""What a plan says before it trains; no process group is needed for that."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from partitioner import (
    MemoryLimitError,
    OptionError,
    Plan,
    RuntimeGuardError,
    partition,
)
from partitioner.plan.stages import put_off_bytes_by_stage
from tests.models import MODELS


@pytest.fixture(scope="module")
def plan() -> Plan:
    entry = MODELS["mlp"]
    model = entry.model()
    return partition(model, 2, example_inputs=entry.example(), device="h100")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def measured(plan: Plan, *, compiled: bool) -> Plan:
    """Return the plan as if its prices had been measured."""
    source: Any = type("Measured", (), {"compiled": compiled})()
    return replace(plan, costed=replace(plan.costed, measurements=source))


@pytest.mark.parametrize(
    ("priced", "built", "note"),
    [
        (False, True, "priced uncompiled"),
        (True, False, "priced compiled"),
        (True, True, ""),
        (False, False, ""),
    ],
)
def test_stages_that_run_otherwise_than_priced_are_noted(
    plan, caplog, priced, built, note
):
    made = measured(plan, compiled=priced)
    with caplog.at_level(logging.WARNING), pytest.raises(RuntimeGuardError):
        made.pipeline_module(compile=built)
    assert note in caplog.text
    assert bool(note) == bool(caplog.text)


def test_only_rank_0_says_so(plan, caplog, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with caplog.at_level(logging.WARNING), pytest.raises(RuntimeGuardError):
        plan.pipeline_module(compile={"backend": "aot_eager"})
    assert not caplog.text


def test_options_of_compile_are_checked_before_a_launcher_is_needed(plan):
    with pytest.raises(OptionError, match="CUDA graphs"):
        plan.pipeline_module(compile={"mode": "reduce-overhead"})


def limited(plan: Plan, limit_bytes: int) -> Plan:
    return replace(plan, problem=replace(plan.problem, memory_limit_bytes=limit_bytes))


def test_zero_bubble_that_does_not_fit_is_refused_before_anything_is_built(plan):
    count = plan.options.micro_batches
    first, more = put_off_bytes_by_stage(plan.graph, plan.placement, count)
    assert first == 0 < more
    needed = plan.stages[1].memory_bytes + more
    with pytest.raises(
        MemoryLimitError, match="zero_bubble=True does not fit"
    ) as found:
        limited(plan, needed - 1).initialize(zero_bubble=True)
    assert (found.value.stage, found.value.needed_bytes) == (1, needed)
    with pytest.raises(RuntimeGuardError):  # there is no launcher: it went on
        limited(plan, needed).initialize(zero_bubble=True)
