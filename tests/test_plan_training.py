"""What a plan says before it trains; no process group is needed for that."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from partitioner import OptionError, Plan, RuntimeGuardError, partition
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
