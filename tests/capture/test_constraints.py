from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from partitioner import OptionError, Plan, partition
from partitioner.capture import capture
from partitioner.graph import info
from tests.models import MODELS

BLOCK = "transformer.h.{}"


def gpt2_plan(stages: int = 2, **constraints) -> Plan:
    entry = MODELS["gpt2"]
    return partition(
        entry.model(),
        stages,
        example_inputs=entry.example(),
        device="h100",
        gap=0.0,
        **constraints,
    )


def stages_of(plan: Plan, path: str) -> set[int]:
    return {
        stage
        for node, stage in plan.placement.stage_of.items()
        if info(node).module == path or info(node).module.startswith(f"{path}.")
    }


def test_without_constraints_the_best_cut_goes_through_a_block():
    plan = gpt2_plan(3)
    assert any(len(stages_of(plan, BLOCK.format(i))) > 1 for i in range(4))


@pytest.mark.parametrize("pattern", ["transformer.h.?", "class"])
def test_no_cut_goes_through_what_may_not_be_cut(pattern):
    if pattern == "class":
        from transformers.models.gpt2.modeling_gpt2 import GPT2Block

        pattern = GPT2Block
    plan = gpt2_plan(3, no_cut_inside=[pattern])
    assert all(len(stages_of(plan, BLOCK.format(i))) == 1 for i in range(4))
    assert plan.graph.constraints.no_cut_inside == tuple(map(BLOCK.format, range(4)))
    assert plan.verify().ok


def test_groups_stay_together():
    free = gpt2_plan(4)
    assert stages_of(free, BLOCK.format(0)) != stages_of(free, BLOCK.format(2))
    names = [BLOCK.format(i) for i in range(3)]
    plan = gpt2_plan(2, keep_together=names)
    (stage,) = set().union(*(stages_of(plan, name) for name in names))
    assert stage == 0
    two = gpt2_plan(2, keep_together=[names[:2], ["transformer.h.3", "lm_head"]])
    assert stages_of(two, names[0]) == stages_of(two, names[1])
    assert stages_of(two, "transformer.h.3") == stages_of(two, "lm_head")


def test_a_leaf_is_one_call_with_its_reason():
    plan = gpt2_plan(leaf=["*.mlp"])
    calls = {
        str(node.target) for node in plan.graph.graph.nodes if node.op == "call_module"
    }
    assert {f"transformer.h.{i}.mlp" for i in range(4)} <= calls
    assert "transformer.h.0.mlp runs as a whole: asked for" in plan.graph.assumptions
    assert plan.verify().ok


@pytest.mark.parametrize("argument", ["leaf", "keep_together", "no_cut_inside"])
@pytest.mark.parametrize(
    ("pattern", "said"), [("0.other", "0.other"), (nn.Conv2d, "Conv2d"), (3, "3")]
)
def test_a_pattern_that_matches_nothing_is_refused(argument, pattern, said):
    constraints: dict[str, Any] = {argument: [pattern]}
    with pytest.raises(OptionError, match=argument) as caught:
        capture(nn.Sequential(nn.Linear(2, 2)), torch.zeros(1, 2), **constraints)
    assert said in caught.value.message


def test_what_is_similar_is_named():
    entry = MODELS["gpt2"]
    with pytest.raises(OptionError) as caught:
        capture(entry.model(), entry.example(), leaf=["transformer.h.0.atn"])
    assert "transformer.h.0.attn" in caught.value.hint


def test_a_plan_file_keeps_its_constraints(tmp_path):
    plan = gpt2_plan(leaf=["transformer.h.1.mlp"], no_cut_inside=["transformer.h.2"])
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json", MODELS["gpt2"].model())
    assert loaded.graph.constraints == plan.graph.constraints
    assert loaded.to_dict() == plan.to_dict()
