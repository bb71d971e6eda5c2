"""The learning-rate schedule."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.runtime import lr_schedules

from partitioner.doctor.case import number
from partitioner.doctor.finding import Edit, Rule, Symptom
from partitioner.doctor.rules.shared import setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from partitioner.doctor.case import Case

__all__ = ["RULES"]

_TOTAL = "total_num_steps"
_PARAMS = "scheduler.params"


def _kind(case: Case) -> Any:
    name = str(case.section("scheduler").get("type", ""))
    if name in lr_schedules.VALID_LR_SCHEDULES:
        return getattr(lr_schedules, name)
    return getattr(torch.optim.lr_scheduler, name, None)


def _unknown(case: Case) -> Iterator[Symptom]:
    name = case.section("scheduler").get("type")
    if name and _kind(case) is None:
        near = get_close_matches(str(name), lr_schedules.VALID_LR_SCHEDULES, n=1)
        yield Symptom(
            where="scheduler.type",
            why=f"neither DeepSpeed nor torch has a schedule {name!r}",
            change=near[0] if near else ", ".join(lr_schedules.VALID_LR_SCHEDULES),
        )


def _signature(case: Case) -> Mapping[str, inspect.Parameter]:
    kind = _kind(case)
    if kind is None:
        return {}
    found = list(inspect.signature(kind.__init__).parameters.items())
    return dict(found[2:])  # not self, not the optimizer


def _total(case: Case) -> Iterator[Symptom]:
    """Yield a schedule that needs the number of all steps and does not have it."""
    needed = _signature(case).get(_TOTAL)
    params = case.section("scheduler", "params")
    if needed is None or _TOTAL in params:
        return
    name = case.section("scheduler")["type"]
    kept = "; a corrected copy has WarmupLR: the same without the decay"
    edits = _total_edits(case, str(name))
    yield Symptom(
        where=f"{_PARAMS}.{_TOTAL}",
        why=f"{name} needs it, and it is not given: a TypeError when training starts",
        change=f'"{_TOTAL}": the optimizer steps of the whole run (doctor '
        "--total-steps N)" + (kept if edits and not case.total_steps else ""),
        edits=edits,
    )


def _total_edits(case: Case, name: str) -> tuple[Edit, ...]:
    if case.total_steps:
        return (setting(f"{_PARAMS}.{_TOTAL}", case.total_steps),)
    if name == lr_schedules.WARMUP_DECAY_LR:
        return (setting("scheduler.type", lr_schedules.WARMUP_LR),)
    return ()


def _params(case: Case) -> Iterator[Symptom]:
    signature = _signature(case)
    if not signature:
        return
    if "params" not in case.section("scheduler"):
        yield Symptom(
            where=_PARAMS,
            why="not given: DeepSpeed raises a TypeError even where all have defaults",
            change='"params": {}',
            edits=(setting(_PARAMS, {}),),
        )
    params = case.section("scheduler", "params")
    missing = [
        name
        for name, parameter in signature.items()
        if parameter.default is parameter.empty and name not in params
    ]
    for name in missing:
        if name != _TOTAL:
            yield Symptom(
                where=f"{_PARAMS}.{name}",
                why="it has no default: a TypeError when training starts",
                change="give it",
            )
    for name in params:
        if name not in signature:
            near = get_close_matches(name, signature, n=1)
            yield Symptom(
                where=f"{_PARAMS}.{name}",
                why="the schedule has no such parameter: a TypeError",
                change=f"it is called {near[0]}" if near else "take it out",
            )


def _peak(case: Case) -> Iterator[Symptom]:
    """Yield a schedule that goes to another rate than the optimizer's."""
    signature = _signature(case)
    rate = case.section("optimizer", "params").get("lr")
    if "warmup_max_lr" not in signature or not isinstance(rate, (int, float)):
        return
    params = case.section("scheduler", "params")
    peak = params.get("warmup_max_lr", signature["warmup_max_lr"].default)
    if isinstance(peak, (int, float)) and peak != rate:
        given = "given" if "warmup_max_lr" in params else "the schedule's default"
        yield Symptom(
            where=f"{_PARAMS}.warmup_max_lr",
            why=f"the schedule goes to {peak:g} ({given}), whatever the optimizer's lr "
            f"of {rate:g} says",
            change=f'"warmup_max_lr": {rate:g} if that is the rate you mean',
        )


def _warmup(case: Case) -> Iterator[Symptom]:
    params = case.section("scheduler", "params")
    warmup = number(params.get("warmup_num_steps"))
    total = number(params.get(_TOTAL)) or case.total_steps
    if warmup and total and warmup >= total:
        yield Symptom(
            where=f"{_PARAMS}.warmup_num_steps",
            why=f"{warmup} steps of warm-up in a run of {total}: it never gets to its "
            "rate; a step is a whole batch, not a micro-batch",
            change=f"less than {total}, often 1 to 10 % of it",
        )


RULES = (
    Rule(code="scheduler-unknown", severity="error", look=_unknown),
    Rule(code="scheduler-total-steps", severity="error", look=_total),
    Rule(code="scheduler-params", severity="error", look=_params),
    Rule(code="scheduler-peak", severity="warning", look=_peak),
    Rule(code="scheduler-warmup", severity="warning", look=_warmup),
)
