"""fp16, bf16, loss scales, and the type in which gradients add up."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from partitioner.doctor.case import number
from partitioner.doctor.finding import Edit, Rule, Symptom
from partitioner.doctor.rules.shared import refused, setting
from partitioner.emit.ds_checks import (
    PRECISION,
    check_accumulation,
    check_autocast,
    check_precision,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.doctor.case import Case

__all__ = ["RULES"]

_HIGHEST_POWER = 20
"""Above, the first steps are certain to overflow: float16 ends at 2¹⁶."""
_USUAL_POWER = 16


def _planned_dtype(case: Case) -> Any:
    name = case.plan["provenance"]["dtype"] if case.plan else ""
    return getattr(torch, name, None)


def _both(case: Case) -> Iterator[Symptom]:
    if all(case.section(key).get("enabled") for key in PRECISION.values()):
        kept = PRECISION.get(_planned_dtype(case), "bf16")
        other = "fp16" if kept == "bf16" else "bf16"
        yield Symptom(
            where=f"{other}.enabled",
            why="fp16 and bf16 are both enabled: DeepSpeed stops",
            change=f"keep one of them (a corrected copy has {kept})",
            edits=(setting(f"{other}.enabled", value=False),),
        )


def _planned(case: Case) -> Iterator[Symptom]:
    planned = _planned_dtype(case)
    if planned is None:
        return
    ours = PRECISION.get(planned)
    config = dict(case.parsed)
    if ours:  # plan.ds_config enables it where the file says nothing
        config[ours] = {"enabled": True, **case.section(ours)}
    edits = tuple(_precision_edits(case, ours))
    where = edits[0].path[0] if edits else "bf16"
    readable = {k: v for k, v in config.items() if case.usable(k)}
    yield from refused(where, partial(check_precision, readable, planned), *edits)


def _precision_edits(case: Case, ours: str | None) -> Iterator[Edit]:
    for key in PRECISION.values():
        enabled = bool(case.section(key).get("enabled", False))
        wanted = key == ours
        if key in case.config and enabled != wanted:
            yield setting(f"{key}.enabled", wanted)


def _autocast(case: Case) -> Iterator[Symptom]:
    path = "torch_autocast.enabled"
    if case.plan and case.usable("torch_autocast"):
        config = {"torch_autocast": case.section("torch_autocast")}
        yield from refused(
            path, partial(check_autocast, config), setting(path, value=False)
        )


def _fp16(case: Case) -> Iterator[Symptom]:
    """Say what float16 can do to a run: the usual source of NaN."""
    if case.dtype == torch.float16:
        yield Symptom(
            where="fp16",
            why="float16 ends at 65,504: larger activations become infinite and the "
            "loss NaN; the loss scale guards gradients alone",
            change="bf16 where the device has it (NVIDIA since Ampere): no loss scale, "
            "the range of float32",
        )


def _static(case: Case) -> Iterator[Symptom]:
    scale = case.section("fp16").get("loss_scale", 0)
    if case.dtype == torch.float16 and isinstance(scale, (int, float)) and scale > 0:
        yield Symptom(
            where="fp16.loss_scale",
            why=f"a fixed scale of {scale:g} never adapts: where gradients overflow, "
            "every step is skipped from then on, and small ones vanish unseen",
            change='"loss_scale": 0, which lets it grow and fall',
        )


def _power(case: Case) -> Iterator[Symptom]:
    fp16 = case.section("fp16")
    power = number(fp16.get("initial_scale_power")) or _USUAL_POWER
    patience = number(fp16.get("hysteresis", 2)) or 1
    dynamic = case.dtype == torch.float16 and not fp16.get("loss_scale")
    if dynamic and power > _HIGHEST_POWER:
        skipped = power - _USUAL_POWER + patience - 1
        yield Symptom(
            where="fp16.initial_scale_power",
            why=f"the loss scale begins at 2^{power}; about {skipped} steps are "
            "skipped (“OVERFLOW! Skipping step”) until it has come down to "
            f"2^{_USUAL_POWER}",
            change=f'"initial_scale_power": {_USUAL_POWER}',
            edits=(setting("fp16.initial_scale_power", _USUAL_POWER),),
        )


def _unscaled(case: Case) -> Iterator[Symptom]:
    if case.dtype == torch.float16 and case.zero_stage == 0 and not case.plan:
        yield Symptom(
            where="fp16",
            why="without ZeRO, DeepSpeed's own pipeline engine (0.19.8) does not "
            "multiply the loss by its scale but divides the gradients by it",
            change="the engine of plan.initialize, ZeRO-1, or bf16",
        )


def _accumulation(case: Case) -> Iterator[Symptom]:
    if case.usable("data_types") and case.usable("zero_optimization"):
        planned = _planned_dtype(case) or case.dtype
        yield from refused(
            "data_types.grad_accum_dtype",
            partial(check_accumulation, case.parsed, planned),
            setting("zero_optimization.stage", 1),
        )


def _bf16_sums(case: Case) -> Iterator[Symptom]:
    chosen = case.section("data_types").get("grad_accum_dtype")
    steps = case.micro_batches or 1
    bf16 = case.dtype == torch.bfloat16 or _planned_dtype(case) == torch.bfloat16
    if bf16 and chosen in (None, "bf16") and steps > 1:
        yield Symptom(
            where="data_types.grad_accum_dtype",
            why=f"gradients of {steps} micro-batches are added up in bfloat16, which "
            "has 8 bits: small ones are lost",
            change='"data_types": {"grad_accum_dtype": "fp32"}, with ZeRO-1',
        )


RULES = (
    Rule(code="precision-both", severity="error", look=_both),
    Rule(code="plan-precision", severity="error", look=_planned),
    Rule(code="plan-autocast", severity="error", look=_autocast),
    Rule(code="fp16-range", severity="info", look=_fp16),
    Rule(code="fp16-static-scale", severity="warning", look=_static),
    Rule(code="fp16-initial-scale", severity="warning", look=_power),
    Rule(code="fp16-unscaled", severity="warning", look=_unscaled),
    Rule(code="gradient-dtype", severity="error", look=_accumulation),
    Rule(code="bf16-sums", severity="info", look=_bf16_sums),
)
