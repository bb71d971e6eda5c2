"""Corrected copies: all that can be mended is, once, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import pytest
from deepspeed.runtime.config import DeepSpeedConfig

from partitioner.doctor.finding import REMOVED, Edit
from partitioner.doctor.fixing import edited
from tests.doctor.cases import CLEAN, codes, config, look, plan_document, planned
from tests.doctor.shown import CASES, on, zero


def edit(path: str, value: Any) -> Edit:
    return Edit(path=tuple(path.split(".")), value=value)


def test_an_edit_leaves_the_original_alone():
    original: dict[str, Any] = {"a": {"b": [1]}, "c": 1}
    copy = edited(original, [edit("a.d", 2), edit("c", REMOVED)])
    assert copy == {"a": {"b": [1], "d": 2}}
    assert original == {"a": {"b": [1]}, "c": 1}
    assert copy["a"]["b"] is not original["a"]["b"]


def test_a_section_that_loses_its_last_entry_goes():
    assert edited({"a": {"b": 1}, "c": {}}, [edit("a.b", REMOVED)]) == {"c": {}}
    assert edited({"a": {"b": {"c": 1}}}, [edit("a.b.c", REMOVED)]) == {}


def test_a_section_that_is_not_there_is_made_or_left_out():
    assert edited({}, [edit("a.b.c", 1)]) == {"a": {"b": {"c": 1}}}
    assert edited({"a": 3}, [edit("a.b", REMOVED)]) == {"a": 3}


@pytest.mark.parametrize("code", CASES)
def test_a_corrected_copy_needs_no_correction(code: str):
    (shown, known), _ = CASES[code]
    again = look(look(shown, **known).fixed, **{**known, "duplicates": ()})
    assert again.edits == ()


@pytest.mark.parametrize("code", CASES)
def test_a_correction_takes_its_code_away(code: str):
    (shown, known), _ = CASES[code]
    found = look(shown, **known)
    mended = {finding.code for finding in found.findings if finding.edits}
    if code in mended:
        assert code not in codes(found.fixed, **known)


def test_a_configuration_without_a_fault_stays_as_it_is():
    found = look(CLEAN)
    assert found.edits == ()
    assert found.fixed == CLEAN
    assert list(found.fixed) == list(CLEAN)


def test_what_is_right_keeps_its_value_and_its_place():
    own = {"train_micro_batch_size_per_gpu": 4, "zzz": 1, "wall_clock_breakdown": True}
    fixed = look({**own, **config(**zero(2, reduce_bucket_size=7))}).fixed
    assert list(fixed)[:2] == [
        "train_micro_batch_size_per_gpu",
        "wall_clock_breakdown",
    ]
    assert fixed["zero_optimization"] == {"stage": 1, "reduce_bucket_size": 7}


def test_a_slip_of_the_pen_is_renamed_with_its_value():
    found = look(config(gradient_clipping=None, gradient_cliping=0.25))
    assert found.fixed["gradient_clipping"] == 0.25
    assert "gradient_cliping" not in found.fixed


def test_a_key_in_the_wrong_place_moves():
    fixed = look(config(overlap_comm=False, **zero())).fixed
    assert fixed["zero_optimization"] == {"stage": 1, "overlap_comm": False}
    assert "overlap_comm" not in fixed


def test_a_key_that_is_there_already_is_not_overwritten():
    of = config(reduce_bucket_size=1, **zero(reduce_bucket_size=2))
    assert look(of).fixed == config(**zero(reduce_bucket_size=2))


def test_clipping_moves_out_of_the_optimizer():
    params = {"lr": 1e-3, "torch_adam": True, "max_grad_norm": 0.5}
    of = config(optimizer={"type": "AdamW", "params": params}, gradient_clipping=None)
    fixed = look(of).fixed
    assert fixed["gradient_clipping"] == 0.5
    assert "max_grad_norm" not in fixed["optimizer"]["params"]


def test_the_plan_s_numbers_are_taken_over():
    of = planned(
        gradient_accumulation_steps=3,
        train_batch_size=9,
        fp16={"enabled": True, "loss_scale_window": 9},
        pipeline={"activation_checkpoint_interval": 2},
    )
    fixed = look(of, plan=plan_document(), processes=2).fixed
    assert fixed["gradient_accumulation_steps"] == 8
    assert "train_batch_size" not in fixed
    assert fixed["fp16"] == {"enabled": False, "loss_scale_window": 9}
    assert "pipeline" not in fixed


def test_a_decay_without_its_end_is_kept_where_the_end_is_known():
    params = {"warmup_max_lr": 1e-3, "warmup_num_steps": 10}
    of = config(scheduler={"type": "WarmupDecayLR", "params": params})
    known = look(of, total_steps=100).fixed["scheduler"]
    assert known == {
        "type": "WarmupDecayLR",
        "params": {**params, "total_num_steps": 100},
    }
    assert look(of).fixed["scheduler"] == {"type": "WarmupLR", "params": params}


def test_an_adam_that_nothing_compiles_becomes_torch_s():
    of = config(optimizer={"type": "AdamW", "params": {"lr": 1e-3}})
    assert look(of, **on(compiler=None)).fixed["optimizer"]["params"]["torch_adam"]
    assert look(of, **on()).fixed == of


MENDED = [
    code
    for code, ((shown, known), _) in CASES.items()
    if code not in {"refused-value", "refused-together", "batch-missing", "batch-value"}
]


@pytest.mark.parametrize("code", MENDED)
def test_deepspeed_reads_every_corrected_copy(code: str):
    (shown, known), _ = CASES[code]
    fixed = look(shown, **known).fixed
    fixed.pop("train_batch_size", None)  # depends on the number of processes
    DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **fixed})
