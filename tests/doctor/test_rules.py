"""Every code: a case that shows it, and the nearest one that does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from partitioner.doctor.rules import RULES
from partitioner.doctor.rules.batch import bubble_share, micro_batches_for
from tests.doctor.cases import (
    CLEAN,
    MACHINE,
    codes,
    config,
    look,
    plan_document,
    planned,
)
from tests.doctor.shown import (
    CASES,
    MICRO,
    STEPS,
    TOTAL,
    TWO_NODES,
    env,
    memory_plan,
    on,
    zero,
)

DOCS = Path(__file__).parents[2] / "docs" / "doctor.md"


def test_every_rule_has_its_cases():
    assert set(CASES) == {rule.code for rule in RULES}
    assert len(RULES) == len(CASES)


@pytest.mark.parametrize("code", CASES)
def test_a_case_shows_the_code_and_the_nearest_one_does_not(code: str):
    (shown, known), (silent, known_there) = CASES[code]
    assert code in codes(shown, **known)
    assert code not in codes(silent, **known_there)


def test_a_configuration_without_a_fault_has_no_findings():
    assert look(CLEAN, machine=MACHINE).findings == ()


def test_the_documentation_lists_every_code():
    text = DOCS.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (\w+) \|", text, flags=re.MULTILINE)
    assert dict(rows) == {rule.code: rule.severity for rule in RULES}
    assert len(rows) == len(RULES)


def test_every_finding_says_where_why_and_what_to_change():
    for (shown, known), _ in CASES.values():
        for finding in look(shown, **known).findings:
            assert finding.where
            assert finding.why
            assert finding.change


@pytest.mark.parametrize(
    ("stages", "goal", "fewest"), [(4, 0.15, 17), (4, 0.10, 27), (4, 0.05, 57)]
)
def test_micro_batches_for_a_bubble(stages: int, goal: float, fewest: int):
    assert micro_batches_for(stages, goal) == fewest
    assert bubble_share(stages, fewest) <= goal < bubble_share(stages, fewest - 1)


@pytest.mark.parametrize("share", [0.15, 0.10, 0.05])
def test_the_fewest_micro_batches_for_any_number_of_stages(share: float):
    for stages in range(2, 80):
        fewest = micro_batches_for(stages, share)
        assert bubble_share(stages, fewest) <= share + 1e-12
        assert fewest == 1 or bubble_share(stages, fewest - 1) > share


def change_of(code: str, of: dict[str, Any], **known: Any) -> str:
    return next(f.change for f in look(of, **known).findings if f.code == code)


def test_a_bubble_says_how_many_micro_batches_each_goal_needs():
    text = change_of("bubble", config(**{STEPS: 8}), stages=4)
    assert "17 for 15%, 27 for 10%, 57 for 5%" in text


def test_stages_are_taken_from_a_key_that_deepspeed_does_not_read():
    of = config(**{STEPS: 8}, pipeline={"pipeline_stages": 4})
    assert "17 for 15%" in change_of("bubble", of, stages=None)


def test_advice_on_memory_is_in_the_order_of_its_cost():
    known = memory_plan(saved_bytes=40, static_bytes=50)
    (found,) = (f for f in look(planned(), **known).findings if f.code == "memory")
    assert found.severity == "warning"
    order = [
        "expandable_segments",
        "half the size",
        'checkpointing="all"',
        "to the CPU",
    ]
    places = [found.change.index(text) for text in [*order, "3 stages"]]
    assert places == sorted(places)
    assert "ZeRO-1 over" not in found.change

    known["processes"] = 8
    text = change_of("memory", planned(), **known)
    assert text.index("ZeRO-1 over 4 replicas") < text.index("half the size")


def test_advice_leaves_out_what_is_done_already():
    of = planned(**zero(offload_optimizer={"device": "cpu"}))
    known = {
        "plan": plan_document(checkpointing="all"),
        **env(PYTORCH_ALLOC_CONF="expandable_segments:True"),
        "processes": 8,
    }
    text = change_of("memory", of, **known)
    for done in ("expandable", "checkpointing=", "ZeRO-1"):
        assert done not in text
    assert "half the size" in text


def test_a_stage_above_its_limit_is_an_error():
    known = memory_plan()
    known["plan"]["stages"][1]["memory_bytes"] = 101
    (found,) = (f for f in look(planned(), **known).findings if f.code == "memory")
    assert (found.severity, found.where) == ("error", "plan: stage 1")


def test_a_loopback_interface_is_wrong_for_several_nodes_only():
    here = {"NCCL_SOCKET_IFNAME": "lo", "LOCAL_WORLD_SIZE": "2"}
    assert "nccl-interface" in codes(CLEAN, **env(**here, WORLD_SIZE="4"))
    assert "nccl-interface" not in codes(CLEAN, **env(**here, WORLD_SIZE="2"))


def test_an_exact_interface_is_no_beginning_of_a_name():
    assert "nccl-interface" in codes(CLEAN, **env(NCCL_SOCKET_IFNAME="=eth"))
    assert "nccl-interface" in codes(CLEAN, **env(GLOO_SOCKET_IFNAME="eth"))
    assert "nccl-interface" not in codes(CLEAN, **env(NCCL_SOCKET_IFNAME="^docker"))


def test_gpus_on_two_nodes_are_a_note_where_the_process_may_run_on_both():
    known = on(accelerators=TWO_NODES)
    (found,) = (f for f in look(CLEAN, **known).findings if f.code == "numa-affinity")
    assert found.severity == "info"
    assert "1 on node 0, 1 on node 1" in found.why


def test_an_unwritten_micro_batch_is_named_for_the_replicas():
    of = config(**{MICRO: None, TOTAL: 4096, STEPS: 8})
    found = look(of, stages=4)
    assert "512 samples on 1 replica, 256" in found.findings[0].why
    assert found.fixed == of
    assert look(of, stages=4, processes=8).fixed[MICRO] == 256


def test_the_old_form_of_zero_is_deprecated_and_not_looked_into():
    found = codes(config(zero_optimization=True))
    assert "deprecated-key" in found
    assert not {"zero-stage", "zero-offload-param"} & found


def test_a_stage_in_quotes_is_a_stage():
    assert "zero-stage" in codes(config(zero_optimization={"stage": "3"}))
    assert "fp16-range" not in codes(config(fp16={"enabled": "false"}))
    old = config(bfloat16={"enabled": True})
    assert "bf16-sums" in codes(old)


def test_an_optimizer_in_other_letters_is_no_module_of_torch_s():
    of = config(optimizer={"type": "sgd", "params": {"lr": 0.1, "momentum": 0.9}})
    found = look(of)
    assert [finding.code for finding in found.findings] == ["optimizer-unknown"]
    assert found.fixed["optimizer"]["type"] == "SGD"
