"""ZeRO under a pipeline."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

from partitioner.doctor.finding import Rule, Symptom
from partitioner.doctor.optimizers import optimizer_class
from partitioner.doctor.rules.shared import refused, removal, setting
from partitioner.emit.ds_checks import (
    check_offload_optimizer,
    check_offload_param,
    check_zero_stage,
    offloads,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.doctor.case import Case

__all__ = ["RULES"]

_ZERO = "zero_optimization"
_STAGE = f"{_ZERO}.stage"
_LOADED_WHEN_USED = ("muon",)
"""Supported, but imported only when used, since that compiles its kernels."""


def _stage(case: Case) -> Iterator[Symptom]:
    if case.usable(_ZERO):
        check = partial(check_zero_stage, case.parsed)
        yield from refused(_STAGE, check, setting(_STAGE, 1))


def _offload_param(case: Case) -> Iterator[Symptom]:
    path = f"{_ZERO}.offload_param"
    if case.usable(_ZERO):
        check = partial(check_offload_param, case.parsed)
        yield from refused(path, check, removal(path))


def _offload_optimizer(case: Case) -> Iterator[Symptom]:
    if not case.usable(_ZERO) or case.zero_stage > 1:
        return
    device = f"{_ZERO}.offload_optimizer.device"
    mend = setting(_STAGE, 1) if case.zero_stage == 0 else setting(device, "cpu")
    check = partial(check_offload_optimizer, case.parsed)
    yield from refused(f"{_ZERO}.offload_optimizer", check, mend)


def _overlap(case: Case) -> Iterator[Symptom]:
    path = f"{_ZERO}.overlap_comm"
    if case.section(_ZERO).get("overlap_comm") is True:
        yield Symptom(
            where=path,
            why="a pipeline sums gradients after its last micro-batch; DeepSpeed turns "
            "this off and logs a warning",
            change='"overlap_comm": false',
            edits=(setting(path, value=False),),
        )


def _third_stage_keys(case: Case) -> Iterator[Symptom]:
    keys = [key for key in case.section(_ZERO) if key.startswith("stage3_")]
    if keys:
        yield Symptom(
            where=f"{_ZERO}.{keys[0]}",
            why=f"{', '.join(keys)}: for ZeRO-3 only, which no pipeline has",
            change="take them out",
            edits=tuple(removal(f"{_ZERO}.{key}") for key in keys),
        )


def _untested(case: Case) -> Iterator[Symptom]:
    """Yield optimizers that DeepSpeed refuses under ZeRO unless told not to."""
    name = str(case.section("optimizer").get("type", ""))
    allowed = case.config.get("zero_allow_untested_optimizer", False)
    kind = optimizer_class(case)
    known = kind in ZERO_SUPPORTED_OPTIMIZERS or name.lower() in _LOADED_WHEN_USED
    if case.zero_stage and kind is not None and not known and not allowed:
        path = "zero_allow_untested_optimizer"
        yield Symptom(
            where="optimizer.type",
            why=f"{name} is not on DeepSpeed's list for ZeRO: it stops at an assertion",
            change=f'"{path}": true',
            edits=(setting(path, value=True),),
        )


def _cpu_optimizer(case: Case) -> Iterator[Symptom]:
    forced = case.config.get("zero_force_ds_cpu_optimizer", True)
    given = optimizer_class(case)
    torchs = given is not None and given.__module__.startswith("torch.")
    away = case.usable(_ZERO) and offloads(case.parsed) == "cpu"
    if away and forced and not torchs:
        yield Symptom(
            where=f"{_ZERO}.offload_optimizer",
            why="DeepSpeed takes its own optimizer for the CPU, which is compiled at "
            "the start, and refuses one of torch's that is passed to initialize",
            change='"torch_adam": true among the optimizer\'s params; '
            '"zero_force_ds_cpu_optimizer": false for one that is passed',
        )


RULES = (
    Rule(code="zero-stage", severity="error", look=_stage),
    Rule(code="zero-offload-param", severity="error", look=_offload_param),
    Rule(code="zero-offload-optimizer", severity="error", look=_offload_optimizer),
    Rule(code="zero-overlap", severity="info", look=_overlap),
    Rule(code="zero-stage3-key", severity="info", look=_third_stage_keys),
    Rule(code="zero-optimizer", severity="error", look=_untested),
    Rule(code="zero-cpu-optimizer", severity="info", look=_cpu_optimizer),
)
